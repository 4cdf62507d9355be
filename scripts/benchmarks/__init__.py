"""Benchmarks run by ``scripts/bench.py``: one module each, with ``run(options)``; what they share is in ``common``."""
