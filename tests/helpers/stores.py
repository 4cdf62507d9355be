"""Short names for what the tests of the journal do."""

import time

from memalpha.memory.schema import MemorySchema
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.store.journal import Journal, Namespace, Origin
from memalpha.types import Operation, OperationKind
from memalpha.use.store import MemoryStore

SCHEMA = MemorySchema.from_mapping(
    {
        "name": "test",
        "sections": [
            {"name": "core", "kind": "block"},
            {"name": "facts", "timestamps": True},
            {"name": "notes"},
        ],
    }
)
MARTA, IVAN = Namespace("marta"), Namespace("ivan")
BY = Origin("tester", "chunk-7", "ab12")


def insert(content, section="facts", **more):
    return Operation(OperationKind.INSERT, section, content, **more)


def update(entry_id, content, section="facts", **more):
    return Operation(OperationKind.UPDATE, section, content, entry_id, **more)


def delete(entry_id, section="facts"):
    return Operation(OperationKind.DELETE, section, entry_id=entry_id)


def core(content):
    return Operation(OperationKind.REPLACE, "core", content)


def opened(path, namespace=MARTA, **more):
    journal = Journal.open(path, **more)
    return journal, journal.memory(namespace, SCHEMA)


def indexed(path, **more):
    return MemoryStore(path, SCHEMA, **more)


def tell_a_story(durable):
    """1 insert, 2 insert, 3 update of 1, 4 core, 5 delete of 2."""
    durable.apply(insert("Marta lives in Oslo"), BY, chunk=3, time="2024-01-01")
    durable.apply(insert("tea", "notes"), BY)
    durable.apply(update("1", "Marta lives in Rome"), Origin("other"), time="2024-05-05")
    durable.apply(core("likes rain"), BY)
    durable.apply(delete("2", "notes"), BY)


def contents(memory) -> dict[str, str]:
    return {entry.id: entry.content for entry in memory}


def state(memory):
    return memory.snapshot(), [entry.id for entry in memory.newest()]


def rebuilt(durable):
    return durable.as_of(durable.memory.clock - 1)


def agrees(store, name=MARTA) -> bool:
    anew = rebuilt(durable_of(store, name))
    fresh = retriever_factory()(anew)
    queries = {word for entry in anew.entries() for word in entry.content.split()[:2]}
    with store.reading(name) as (memory, retriever):
        same = [retriever.search(query, 5) == fresh.search(query, 5) for query in sorted(queries)]
        return state(memory) == state(anew) and all(same)


def durable_of(store, name=MARTA):
    with store.durable(name) as durable:
        return durable


def memory_of(store, name=MARTA):
    return durable_of(store, name).memory


def search(store, name, query, k):
    with store.reading(name) as (_, retriever):
        return retriever.search(query, k)


def apply(store, name, operation, by=BY):
    with store.writing(by, namespace=name) as memory:
        return memory.apply(operation)


def wait_until_scrubbed(journal):
    end = time.monotonic() + 20
    while journal.unscrubbed and time.monotonic() < end:
        time.sleep(0.05)
    assert not journal.unscrubbed


def files_with(folder, *texts):
    found = []
    encodings = (("utf-8", "strict"), ("utf-16-le", "strict"), ("ascii", "backslashreplace"))
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for text in texts:
            if any(text.encode(*encoding) in path.read_bytes() for encoding in encodings):
                found.append(f"{path.name}: {text}")
    return found
