"""Compares systems under one protocol.

Flow: ``options``, ``run`` (with ``systems``, ``raw``, ``writers``, ``host``, ``folder``), ``summary`` (with ``statistics``,
``scorecard``), ``tables``. ``poisoning`` is the suite of ``memalpha poison``.
"""
