"""Compares systems under one protocol: options, run, folder, summary, tables; and the suite of
``memalpha poison``.
"""
