"""Benchmarks run by ``scripts/bench.py``: one module each, with ``run(options)``."""
