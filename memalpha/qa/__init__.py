"""Question answering on a finished memory: readers, metrics, judges, and what joins them."""
