"""The durable store: start at ``memalpha.store.journal``; the guide is ``docs/store.md``."""
