"""The durable store: start at ``memalpha.store.journal``, which appends, reads and verifies;
``durable`` applies and takes back, ``forgetting`` erases. The guide is ``docs/explain/store.md``.
"""
