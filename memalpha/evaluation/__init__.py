"""Compares systems under one protocol.

Flow: ``options``, ``run`` (with ``systems``, ``host``, ``folder``), ``results``, ``summary`` (with ``statistics``, ``scorecard``),
then ``tables``, ``plots``, ``published``. ``judging`` tests the judge. ``poisoning`` is the suite of ``memalpha poison``.
"""
