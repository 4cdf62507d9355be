"""Question answering on a finished memory: metrics, readers, judges, and the evaluator that joins
them.
"""
