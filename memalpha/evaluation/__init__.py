"""Systems compared under one protocol.

``options`` -> ``run`` (the loop; ``systems`` write, ``host`` has the model, ``folder`` keeps) -> ``results`` -> ``summary`` (with
``statistics`` and ``scorecard``) -> ``tables``, ``plots``, ``published``. ``judging`` tries the judge itself; ``poisoning`` is the
suite of ``memalpha poison``.
"""
