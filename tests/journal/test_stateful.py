"""Random operations of every kind against a dict and brute-force search; live, rebuilt and reopened stores must all agree."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from brute_force import bm25, ranked
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from stores import BY, MARTA, agrees, core, delete, indexed, insert, update

from memalpha.errors import ForgottenError, InputError, JournalError

WORDS = ["oslo", "rome", "tea", "rain", "chess"]
TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)


class StoreMachine(RuleBasedStateMachine):
    """The model: ``entries`` (id -> section, content), a list of what each operation changed, and the states after each."""

    @initialize()
    def start(self):
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(dir=base))
        self.entries: dict[str, tuple[str, str]] = {}
        self.order: dict[str, int] = {}
        self.log: list[tuple[str, object, object] | None] = []  # (id, before, after); None for a receipt
        self.states: dict[int, dict[str, tuple[str, str]]] = {0: {}}
        self.texts: dict[str, set[str]] = {}  # what the log still holds of an entry
        self.births: dict[str, int] = {}
        self.next_id, self.blind = 1, 0
        self.open()

    def open(self):
        self.store = indexed(self.folder / "s.db")
        self.journal = self.store.journal

    def teardown(self):
        if hasattr(self, "folder"):
            self.journal.close()
            shutil.rmtree(self.folder)

    def changed(self, key, after):
        before = self.entries.pop(key, None)
        self.log.append((key, before, after))
        if before is None and key not in self.order:
            self.order[key] = len(self.log)
        if after is not None:
            self.entries[key] = after
            self.texts.setdefault(key, set()).add(after[1])
        else:
            self.births[key] = self.order.pop(key)
        self.states[len(self.log)] = dict(self.entries)

    def same(self, section, content, but=None):
        return next((k for k, v in self.entries.items() if v == (section, content) and k != but), None)

    @rule(text=TEXT, section=st.sampled_from(["facts", "notes"]))
    def insert(self, text, section):
        result = self.store.apply(MARTA, insert(text, section), BY)
        if (twin := self.same(section, text)) is not None:
            assert result.entry_id == twin and not result.changed
        else:
            assert result.entry_id == str(self.next_id)
            self.changed(str(self.next_id), (section, text))
            self.next_id += 1

    @rule(key=st.integers(1, 8).map(str), text=TEXT, section=st.sampled_from(["facts", "notes"]))
    def update(self, key, text, section):
        result = self.store.apply(MARTA, update(key, text, section), BY)
        if self.entries.get(key, ("",))[0] != section:
            assert not result.ok
        elif self.entries[key] == (section, text):
            assert not result.changed
        else:
            self.changed(key, None if self.same(section, text) else (section, text))

    @rule(key=st.integers(1, 8).map(str), section=st.sampled_from(["facts", "notes"]))
    def delete(self, key, section):
        result = self.store.apply(MARTA, delete(key, section), BY)
        assert result.ok == (self.entries.get(key, ("",))[0] == section)
        if result.ok:
            self.changed(key, None)

    @rule(text=TEXT)
    def write_core(self, text):
        result = self.store.apply(MARTA, core(text), BY)
        if self.entries.get("core") != ("core", text):
            assert result.changed
            self.changed("core", ("core", text))

    @rule(back=st.integers(0, 6))
    def undo(self, back):
        seq = len(self.log) - back
        if seq <= self.blind:
            return
        entry = self.log[seq - 1]
        allowed = all(e is None or e[0] != entry[0] for e in self.log[seq:])
        twin = allowed and entry[1] is not None and entry[1][0] != "core" and self.same(*entry[1], but=entry[0])
        if not allowed or twin:
            with pytest.raises((JournalError, InputError, ForgottenError)):
                self.store.undo(MARTA, seq, BY)
            return
        self.store.undo(MARTA, seq, BY)
        key, before = entry[0], entry[1]
        if key not in self.entries and before is not None:
            self.order[key] = self.births[key]
        self.changed(key, before)

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def forget(self, data):
        """With a marked text that nobody else says, so that the model need not know what else is erased."""
        key = data.draw(st.sampled_from(sorted(self.entries)))
        if key == "core":
            return
        section = self.entries[key][0]
        unique = f"unique{len(self.log)}"
        self.store.apply(MARTA, update(key, unique, section), BY)
        self.changed(key, (section, unique))
        receipt = self.store.forget(MARTA, key)
        texts = self.texts.pop(key)
        keepers = {k for k, (_, content) in self.entries.items() if k != key and content in texts}
        assert set(receipt.said_by) == keepers
        del self.entries[key], self.order[key]
        self.log.append(None)
        for other, held in self.texts.items():
            if other not in keepers:
                held -= texts
        self.blind = len(self.log)  # the model does not look at the past before this; test_forget.py does
        self.states = {len(self.log): dict(self.entries)}

    @rule()
    def reopen(self):
        self.journal.close()
        self.open()

    @rule(query=TEXT, k=st.integers(0, 6))
    def search(self, query, k):
        texts = {key: content for key, (section, content) in self.entries.items() if section != "core"}
        expected = ranked(bm25(texts, query), sorted(texts, key=self.order.__getitem__), k, decimals=9, positive=True)
        assert [hit.entry.id for hit in self.store.search(MARTA, query, k)] == expected

    @rule(data=st.data())
    def look_back(self, data):
        seq = data.draw(st.sampled_from(sorted(self.states)))
        if self.store.memory(MARTA).seq:
            past = self.store.durable(MARTA).as_of(seq)
            assert {e.id: (e.section, e.content) for e in past} == self.states[seq]

    @invariant()
    def everything_agrees(self):
        if not hasattr(self, "folder"):
            return
        memory = self.store.memory(MARTA)
        assert {e.id: (e.section, e.content) for e in memory} == self.entries
        assert [e.id for e in memory] == sorted(self.entries, key=self.order.__getitem__)
        assert memory.seq == len(self.log)
        assert agrees(self.store)

    @rule()
    def verify(self):
        report = self.journal.verify()
        assert report.ok, report.faults


StoreMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStore = StoreMachine.TestCase
