"""The update's arithmetic: log-probabilities of completions, and an exact gradient, fast."""
