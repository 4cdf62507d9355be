"""The memory against a plain dict that follows the written rules, through random histories with
snapshots, restores and copies."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from memalpha.errors import InputError
from memalpha.memory.memory import Memory, Snapshot, diff
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.types import Change, Entry, Operation, OperationKind, ResultCode

INSERT, UPDATE, DELETE, REPLACE = OperationKind
CORE, NOTES = (
    Section("core", SectionKind.BLOCK, max_tokens=3),
    Section("notes", max_entry_tokens=2, max_entries=3),
)
SCHEMA = MemorySchema(
    "test",
    (CORE, NOTES, Section("events", timestamps=True), Section("archive", operations=(INSERT,))),
)
OPERATIONS = st.builds(
    Operation,
    st.sampled_from(OperationKind),
    st.sampled_from(["core", "notes", "events", "events", "archive", "nowhere"]),
    st.sampled_from([None, "", " \n", "a", " a ", "b", "a b", "c", "a b c", "a b c d"]),
    st.sampled_from([None, "", "core", "nowhere", *map(str, range(1, 9))]),
    st.sampled_from([None, "", "2024-03-05", "2024-03-06"]),
)


def replay(changes):
    """Entries that a list of changes leads to from nothing; each change must start from what is
    there."""
    state = {}
    for before, after in changes:
        if before is not None:
            assert state.pop(before.id) == before
        if after is not None:
            assert after.id not in state
            state[after.id] = after
    return state


class MemoryMachine(RuleBasedStateMachine):
    @initialize()
    def start(
        self,
    ):  # ``model`` maps ids to (section, content, timestamp, chunk) in order of creation
        self.memory, self.model, self.used, self.snapshots, self.kept = (
            Memory(SCHEMA),
            {},
            set(),
            [],
            [],
        )

    # ---------------------------------------------------------------- the rules, as written
    def expected(self, op, time, chunk):
        """What must come of an operation: (code, entry id or None if any will do, new model)."""
        if op.section not in SCHEMA:
            return ResultCode.UNKNOWN_SECTION, None, self.model
        section = SCHEMA[op.section]
        if op.kind not in section.operations:
            return ResultCode.NOT_ALLOWED, None, self.model
        target = op.section if op.kind is REPLACE else op.entry_id
        there = (
            op.kind is not INSERT and target in self.model and self.model[target][0] == op.section
        )
        dates = (self.model[target][2], op.timestamp or time) if there else (None, None)
        if (
            there
            and all(dates)
            and dates[0] > dates[1]
            and (op.kind is DELETE or (op.content or "").strip())
        ):
            return ResultCode.OUTDATED, None, self.model
        if op.kind is DELETE:
            if not there:
                return ResultCode.UNKNOWN_ID, None, self.model
            return (
                ResultCode.APPLIED,
                target,
                {key: row for key, row in self.model.items() if key != target},
            )
        content = (op.content or "").strip()
        if not content:
            return ResultCode.EMPTY, None, self.model
        if op.kind is UPDATE and not there:
            return ResultCode.UNKNOWN_ID, None, self.model
        same = self.duplicates(op, content, target if there else None)
        if same and (op.kind is INSERT or target in same):
            return ResultCode.DUPLICATE, None, self.model  # or renewed: ``repeated`` says which
        if same:  # an update to what another entry says
            return (
                ResultCode.APPLIED,
                target,
                {key: row for key, row in self.model.items() if key != target},
            )
        if len(content.split()) > {"core": 3, "notes": 2}.get(op.section, 99):
            return ResultCode.TOO_LONG, None, self.model
        if (
            op.kind is INSERT
            and op.section == "notes"
            and sum(row[0] == "notes" for row in self.model.values()) == 3
        ):
            return ResultCode.SECTION_FULL, None, self.model
        stamp = (op.timestamp or time) if op.section == "events" else None
        key = target if op.kind is not INSERT else "new"
        return ResultCode.APPLIED, key, {**self.model, key: (op.section, content, stamp, chunk)}

    def repeated(self, op, time, chunk, key):
        """What must come of saying again what the entry ``key`` says: (code, new model)."""
        section, content, stamp, place = self.model[key]
        said = (op.timestamp or time) if section == "events" else None
        is_later = (
            said > stamp
            if said and stamp and said != stamp
            else (-1 if chunk is None else chunk) > (-1 if place is None else place)
        )
        if not is_later or op.kind is REPLACE:
            return ResultCode.DUPLICATE, self.model
        return ResultCode.RENEWED, {**self.model, key: (section, content, said or stamp, chunk)}

    def duplicates(self, op, content, target):
        """Ids of entries that say just what the operation says."""
        return [
            key
            for key, (section, text, stamp, _) in self.model.items()
            if (section, text) == (op.section, content)
            and not (section == "events" and op.timestamp and op.timestamp != stamp)
        ]

    @rule(
        data=st.data(),
        kind=st.sampled_from([INSERT, INSERT, UPDATE, DELETE]),
        content=st.sampled_from("abcdefgh"),
    )
    def apply_what_should_work(self, data, kind, content):
        mine = [key for key, row in self.model.items() if row[0] == "events"]
        if mine or kind is INSERT:
            entry_id = None if kind is INSERT else data.draw(st.sampled_from(mine))
            self.apply(
                op=Operation(kind, "events", None if kind is DELETE else content, entry_id),
                time=None,
                chunk=None,
            )

    @rule(
        op=OPERATIONS,
        time=st.sampled_from([None, "2024-03-05", "2024-03-07"]),
        chunk=st.sampled_from([None, 0, 1, 2]),
    )
    def apply(self, op, time, chunk):
        code, key, model = self.expected(op, time, chunk)
        count, before = len(self.memory.changes), list(self.memory)
        result = self.memory.apply(op, chunk=chunk, time=time)
        if code is ResultCode.DUPLICATE:
            target = {REPLACE: op.section, UPDATE: op.entry_id}.get(op.kind)
            assert result.entry_id in self.duplicates(op, (op.content or "").strip(), target)
            key = result.entry_id
            code, model = self.repeated(op, time, chunk, key)
        assert (result.code, result.operation) == (code, op) and result.message
        assert result.ok == (code in (ResultCode.APPLIED, ResultCode.DUPLICATE, ResultCode.RENEWED))
        assert result.changed == (code is ResultCode.APPLIED)
        assert result.repeated == (code in (ResultCode.DUPLICATE, ResultCode.RENEWED))
        assert (
            result.logged
            == (code in (ResultCode.APPLIED, ResultCode.RENEWED))
            == (len(self.memory.changes) == count + 1)
        )
        if not result.logged:
            assert list(self.memory) == before and result.entry_id == (
                key if code is ResultCode.DUPLICATE else None
            )
            return
        if key == "new":
            key = result.entry_id
            assert key not in self.used
            self.used.add(key)
            model[key] = model.pop("new")
        assert result.entry_id == key
        self.model = model

    @rule()
    def snapshot(self):
        self.snapshots.append((self.memory.snapshot(), dict(self.model)))

    @rule(data=st.data())
    def restore(self, data):
        if self.snapshots:
            taken, model = data.draw(st.sampled_from(self.snapshots))
            self.memory.restore(taken)
            self.model = dict(model)
            assert self.memory.snapshot().entries == taken.entries

    @rule()
    def go_on_with_a_copy(self):
        """The copy has the same state and goes on like the original; what happens to it leaves the
        original alone."""
        original, self.memory = self.memory, self.memory.copy()
        assert self.memory.snapshot() == original.snapshot()
        more = Operation(INSERT, "events", "e", timestamp=str(2000 + len(self.used)))
        assert original.copy().apply(more, chunk=1) == self.memory.copy().apply(more, chunk=1)
        self.kept.append((original, original.snapshot(), list(original.changes)))

    # ---------------------------------------------------------------- what always holds
    @invariant()
    def entries_are_those_of_the_model_in_order(self):
        rows = {e.id: (e.section, e.content, e.timestamp, e.source_chunk) for e in self.memory}
        assert list(rows.items()) == list(self.model.items())
        assert len(self.memory) == len(self.model)
        created = [entry.created for entry in self.memory]
        assert created == sorted(set(created))
        assert all(entry.created <= entry.updated for entry in self.memory)

    @invariant()
    def views_agree_with_the_entries(self):
        every = list(self.memory)
        for section in SCHEMA.sections:
            mine = [entry for entry in every if entry.section == section.name]
            assert self.memory.section_size(section.name) == len(mine)
            assert list(self.memory.entries(section.name)) == mine
        listed = [entry for entry in every if entry.section != "core"]
        assert list(self.memory.entries()) == listed
        assert self.memory.block("core") == self.model.get("core", ("", ""))[1]
        assert self.memory.tokens == sum(len(row[1].split()) for row in self.model.values())
        assert list(self.memory.newest()) == sorted(listed, key=lambda entry: -entry.updated)
        assert all(self.memory.get(entry.id) is entry for entry in every)

    @invariant()
    def changes_replay_to_the_same_state_and_originals_of_copies_are_left_alone(self):
        state = replay(self.memory.changes)
        assert sorted(state.values(), key=lambda entry: entry.created) == list(self.memory)
        for memory, snapshot, changes in self.kept:
            assert memory.snapshot() == snapshot
            assert memory.changes == changes


TestMemory = MemoryMachine.TestCase
TestMemory.settings = settings(max_examples=200, stateful_step_count=40)


def filled(*contents, section="events"):
    memory = Memory(SCHEMA)
    for content in contents:
        assert memory.apply(Operation(INSERT, section, content)).changed
    return memory


# --------------------------------------------------------------------------------------------
# single histories, by hand
def test_a_small_history_by_hand():
    memory = Memory(SCHEMA)
    memory.apply(Operation(INSERT, "events", "a"), chunk=0, time="2024-03-04")
    memory.apply(Operation(REPLACE, "core", "me"), chunk=0)
    memory.apply(Operation(UPDATE, "events", "b", "1"), chunk=1)
    memory.apply(Operation(INSERT, "events", "c", timestamp="2024-05"), chunk=2, time="2024-03-05")
    memory.apply(Operation(DELETE, "events", entry_id="1"), chunk=3)
    first = Entry("1", "events", "a", "2024-03-04", 0, 0, 0)
    core = Entry("core", "core", "me", None, 0, 1, 1)
    second = Entry("1", "events", "b", None, 1, 0, 2)
    third = Entry("2", "events", "c", "2024-05", 2, 3, 3)
    assert list(memory) == [core, third]
    expected = [
        Change(None, first),
        Change(None, core),
        Change(first, second),
        Change(None, third),
        Change(second, None),
    ]
    assert memory.changes == expected
    assert memory.apply(Operation(INSERT, "events", "a")).entry_id == "3"


def test_nothing_is_truncated_at_a_limit():
    memory = Memory(SCHEMA, count_tokens=len)
    assert memory.apply(Operation(INSERT, "notes", "abc")).code is ResultCode.TOO_LONG
    assert memory.apply(Operation(INSERT, "notes", "ab")).changed and [
        entry.content for entry in memory
    ] == ["ab"]


@pytest.mark.parametrize(
    ("first", "again", "code", "held"),
    [  # (time, chunk) of the first and of the second time; what the entry then has
        (("2024-01-05", 0), ("2024-06-01", 1), ResultCode.RENEWED, ("2024-06-01", 1)),
        (
            ("2024-06-01", 0),
            ("2024-01-05", 1),
            ResultCode.DUPLICATE,
            ("2024-06-01", 0),
        ),  # read later, said earlier
        ((None, 0), ("2024-01-05", 1), ResultCode.RENEWED, ("2024-01-05", 1)),
        (("2024-01-05", 0), (None, 1), ResultCode.RENEWED, ("2024-01-05", 1)),
        (("2024-01-05", 1), (None, 1), ResultCode.DUPLICATE, ("2024-01-05", 1)),
        (
            ("2024-01-05T10:00", 0),
            ("2024-01-05", 1),
            ResultCode.RENEWED,
            ("2024-01-05", 1),
        ),  # the same day: by chunk
        (
            ("2024-01-05T10:00+02:00", 0),
            ("2024-01-05T09:00Z", 1),
            ResultCode.RENEWED,
            ("2024-01-05T09:00Z", 1),
        ),
        (
            ("2024-01-05T10:00Z", 0),
            ("2024-01-05T11:00+02:00", 1),
            ResultCode.DUPLICATE,
            ("2024-01-05T10:00Z", 0),
        ),
    ],
)
def test_what_is_said_again_later_holds_since_then(first, again, code, held):
    memory = Memory(SCHEMA)
    insert = Operation(INSERT, "events", "Marta city Oslo")
    for time, chunk in (first, again):
        result = memory.apply(insert, time=time, chunk=chunk)
    entry = memory.get("1")
    assert (
        result.code is code and (entry.timestamp, entry.source_chunk) == held and len(memory) == 1
    )


def test_going_back_frees_no_id_and_numbers_of_changes_grow_on():
    memory = filled("a")
    early = memory.snapshot()
    memory.apply(Operation(INSERT, "events", "b"))
    memory.restore(early)
    assert memory.apply(Operation(INSERT, "events", "c")).entry_id == "3"
    memory = filled("a")
    memory.apply(Operation(UPDATE, "events", "b", "1"))
    other = Memory(SCHEMA)
    other.restore(memory.snapshot())
    other.apply(Operation(INSERT, "events", "h"))
    assert [(entry.created, entry.updated) for entry in other] == [(0, 1), (2, 2)]


@pytest.mark.parametrize(
    ("snapshot", "message"),
    [
        (Snapshot("other", (), 1), "snapshot has the schema 'other'"),
        (Snapshot("test", (Entry("1", "gone", "a"),), 2), r"sections \['gone'\]"),
        (
            Snapshot("test", (Entry("1", "events", "a"), Entry("1", "events", "b")), 2),
            "an id twice",
        ),
        (
            Snapshot(
                "test",
                (Entry("2", "events", "a", created=1), Entry("1", "events", "b", created=0)),
                3,
            ),
            "order of creation",
        ),
        (
            Snapshot("test", (Entry("1", "events", "a"), Entry("2", "events", "b")), 3),
            "order of creation",
        ),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused_before_anything_changes(snapshot, message):
    memory = filled("kept")
    before = memory.snapshot()
    with pytest.raises(InputError, match=message):
        memory.restore(snapshot)
    assert memory.snapshot() == before and len(memory.changes) == 1


def test_diff_lists_deletions_then_writes():
    a, b, c = Entry("1", "events", "a"), Entry("2", "events", "b"), Entry("3", "events", "c")
    changed = replace(b, content="B")
    assert diff([a, b], [changed, c]) == [Change(a, None), Change(b, changed), Change(None, c)]
    assert diff([a, b], [a, b]) == []
