#!/usr/bin/env bash
# Two stores of LangGraph's one interface (BaseStore) answer the same calls otherwise. InMemoryStore of langgraph-checkpoint 4.3.2, which
# programs are tested with: a `get` that finds nothing makes its namespace appear in `list_namespaces`; "$ne" matches items without the
# field; "$gt" raises TypeError if one item of the namespace lacks the field. SqliteStore of langgraph-checkpoint-sqlite 3.1.2: no
# namespace appears, "$ne" passes such items over, "$gt" compares those that have it. In both, a second `put` of a key moves
# `created_at`, which the interface calls the time of the item's creation. It matters to whoever keeps memories in such a store:
# filters that passed in tests find other memories in use, and the age of a memory is lost when it is updated.
set -euo pipefail
place="$(mktemp -d)"
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet "langgraph-checkpoint==4.3.2" "langgraph-checkpoint-sqlite==3.1.2"
cd "$place"
"$place/venv/bin/python" - <<'PYTHON'
import sqlite3
import time
from importlib.metadata import version

from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore


def answers(store):
    store.get(("nobody",), "name")
    seen = {"namespaces after a get of nothing": store.list_namespaces()}
    store.put(("marta",), "cat", {"age": 3})
    store.put(("marta",), "dog", {"name": "Rex"})
    created = store.get(("marta",), "cat").created_at
    time.sleep(1.1)  # SQLite keeps whole seconds
    store.put(("marta",), "cat", {"age": 4})
    seen["created_at stays"] = store.get(("marta",), "cat").created_at == created
    seen["age is not 4"] = [item.key for item in store.search(("marta",), filter={"age": {"$ne": 4}})]
    try:
        seen["age above 1"] = [item.key for item in store.search(("marta",), filter={"age": {"$gt": 1}})]
    except TypeError as error:
        seen["age above 1"] = f"TypeError: {error}"
    return seen


print("langgraph-checkpoint", version("langgraph-checkpoint"), "and its SQLite store", version("langgraph-checkpoint-sqlite"))
on_disk = SqliteStore(sqlite3.connect(":memory:", isolation_level=None))
on_disk.setup()
memory, sqlite = answers(InMemoryStore()), answers(on_disk)
print("InMemoryStore:", memory)
print("SqliteStore:  ", sqlite)
assert memory["namespaces after a get of nothing"] == [("nobody",)] and not sqlite["namespaces after a get of nothing"]
assert not memory["created_at stays"] and not sqlite["created_at stays"]
assert memory["age is not 4"] == ["dog"] and sqlite["age is not 4"] == []
assert memory["age above 1"].startswith("TypeError") and sqlite["age above 1"] == ["cat"]
PYTHON
