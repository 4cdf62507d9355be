"""The parts of the durable store, whose front is ``memalpha.store.journal`` and whose guide is ``docs/store.md``.

Records and their hash chain, what keeps them (SQLite, PostgreSQL), the memory that replays them, verification, forgetting,
exchange, salvage; ``indexed`` adds the retriever.
"""
