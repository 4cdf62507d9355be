"""Question answering on a finished memory: metrics, readers that answer from passages, judges, and the evaluator that joins them.

``metrics`` is pure and scores one answer; ``readers`` turn retrieved passages into answers; ``judges`` decide what no string metric
can; ``endpoint`` is the one client of OpenAI-compatible servers, and ``special_text`` says what it does to the texts it sends;
``batches`` keeps the failures of a batch apart; ``evaluator`` asks all questions of many memories at once.
"""
