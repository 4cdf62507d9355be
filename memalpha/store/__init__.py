"""The durable store: start at ``memalpha.store.journal``; the guide is ``docs/store.md``.

``records`` (a record, the hash chain), ``database`` (SQLite and PostgreSQL), ``log`` (one process's view), ``memory`` (from records
to a memory and its past), ``durable`` (write, undo, forget, compact), ``verify``, ``exchange``, ``indexed`` (with retrievers).
"""
