"""Writes to a journal and is killed, again and again. A child says what it is about to do ("try"),
does it, and says so ("ack").

Killed at a random moment, or just before or after a statement or a flush, it leaves the state
before the last try, or after it.
"""

import copy
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.memory.memory import LINE_ID
from memalpha.memory.schema import ARCHIVE
from memalpha.models.registry import make_tokenizer
from memalpha.store.database import Database
from memalpha.use.agent import MemoryAgent
from tests.helpers.scripted import ScriptedGenerator
from tests.helpers.stores import (
    BY,
    MARTA,
    agrees,
    contents,
    delete,
    files_with,
    indexed,
    insert,
    memory_of,
    opened,
    update,
)


class Model:
    def __init__(self):
        self.entries, self.next_id, self.last, self.gone, self.seq = {}, 1, None, [], 0
        self.lines = {}

    def plan(self, rng, tag):
        ids = sorted(self.entries)
        kind = rng.choice(["write"] * 8 + ["read", "read", "undo", "undo", "forget", "forget"])
        if kind == "undo" and self.last is not None:
            return ["undo", self.seq]
        if kind == "read":
            return ["read", [f"line{tag}y{n}" for n in range(rng.randint(1, 4))]]
        if kind == "forget" and (ids or self.lines):
            return ["forget", rng.choice([*ids, *self.lines])]
        steps, free = [], list(ids)
        for n in range(rng.randint(1, 4)):
            what = rng.choice(["insert", "insert", "update", "delete"]) if free else "insert"
            text = f"text{tag}x{n} " + "filler " * rng.choice([0, 5, 300])
            steps.append(
                ["insert", text]
                if what == "insert"
                else [what, free.pop(rng.randrange(len(free))), text]
            )
        return ["write", steps]

    def after(self, action):
        new = copy.deepcopy(self)
        if action[0] == "write":
            for step in action[1]:
                new.seq += 1
                if step[0] == "insert":
                    key, text = str(new.next_id), step[1].strip()
                    new.next_id += 1
                else:
                    key, text = step[1], step[2].strip() if step[0] == "update" else None
                new.last = (key, new.entries.get(key))
                new.entries.pop(key, None)
                new.entries |= {} if text is None else {key: text}
        elif action[0] == "read":
            for text in action[1]:
                new.seq += 1
                new.lines[f"{LINE_ID}{new.seq}"] = text
            new.last = None
        elif action[0] == "undo":
            key, before = self.last
            new.seq, new.last = self.seq + 1, (key, self.entries.get(key))
            new.entries.pop(key, None)
            new.entries |= {} if before is None else {key: before}
        else:
            new.seq, new.last = self.seq + 1, None
            of = new.lines if action[1] in new.lines else new.entries
            new.gone.append(of.pop(action[1]).split()[0])
        return new


def act(durable, action):
    if action[0] == "write":
        make = {"insert": insert, "update": update, "delete": lambda key, *_: delete(key)}
        with durable.writing(BY) as memory:
            for kind, *what in action[1]:
                assert memory.apply(make[kind](*what)).changed
    elif action[0] == "read":
        with durable.writing(BY) as memory:
            for text in action[1]:
                assert memory.apply(insert(text, ARCHIVE.name)).changed
    elif action[0] == "undo":
        durable.undo(action[1], BY)
    else:
        durable.forget(action[1])


def child(path, model, rng, tag, out):
    _, durable = opened(path)
    for n in range(10_000):
        action = model.plan(rng, f"{tag}n{n}")
        os.write(out, (json.dumps(["try", action]) + "\n").encode())
        act(durable, action)
        os.write(out, (json.dumps(["ack", action]) + "\n").encode())
        model = model.after(action)


def fork(path, model, rng, trial, point, moment):
    ends = os.pipe()
    if (pid := os.fork()) == 0:
        os.close(ends[0])
        try:
            if point:
                arm(point)
            child(path, model, rng, trial, ends[1])
        finally:
            os._exit(3)
    os.close(ends[1])
    if point is None:
        time.sleep(moment)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(ends[0], "rb") as pipe:
        said = [
            json.loads(line) for line in pipe if line.endswith(b"\n")
        ]  # a line cut short by the kill was not said
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    return said


def arm(at):
    """Make the ``at``-th write point of this process its last: before and after each statement and
    each flush."""
    seen = [0]

    def point():
        seen[0] += 1
        if seen[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(real):
        def call(*arguments):
            point()
            result = real(*arguments)
            point()
            return result

        return call

    Database.execute, os.fsync = watched(Database.execute), watched(os.fsync)


def settle(path, model, said):
    """Compare the store with the model after what was said; return the model that is true now, and
    whether a try got through."""
    pending = None
    for what, action in said:
        if what == "ack":
            model, pending = model.after(action), None
        else:
            pending = action
    store = indexed(path)
    memory = memory_of(store, MARTA)
    options = [model] if pending is None else [model, model.after(pending)]
    lines = {line.id: line.content for line in memory.entries(ARCHIVE.name)}
    now = contents(memory), lines, memory.clock - 1
    fits = [option for option in options if now == (option.entries, option.lines, option.seq)]
    assert fits, (now, [(each.entries, each.lines, each.seq) for each in options], pending)
    assert memory.snapshot().next_id == fits[-1].next_id and agrees(store)
    report = store.journal.verify()
    assert report.ok, report.faults
    assert files_with(path.parent, *fits[-1].gone[-20:]) == []
    store.journal.close()
    return fits[-1], pending is not None and fits[-1] is not model


def kills(folder, trials, seed):
    rng, counts = (
        random.Random(seed),
        dict.fromkeys(("acknowledged", "in_flight", "in_flight_kept"), 0),
    )
    for trial in range(trials):
        if trial % 25 == 0:
            model, path = Model(), Path(tempfile.mkdtemp(dir=folder)) / "store.db"
        moment, point = rng.choice([0.02, 0.1, 0.4, 1.0]) * rng.random(), rng.randint(1, 150)
        said = fork(
            path, model, random.Random(rng.random()), trial, point if trial % 2 else None, moment
        )
        model, kept = settle(path, model, said)
        counts["acknowledged"] += sum(what == "ack" for what, _ in said)
        counts["in_flight"] += bool(said) and said[-1][0] == "try"
        counts["in_flight_kept"] += kept
    return counts


def undone_by_half(folder):
    """Kill the undo of an ``add`` at each of its write points; return how many there are, and what
    was half undone afterwards."""
    config = AgentConfig(schema="facts", codec="compact", archive=True)
    step = AgentStep(config, make_tokenizer(["facts"], 4096))
    script = ["+ Marta city Oslo\n+ Marta drink tea", "= 1 Marta city Rome"]

    def agent():
        return MemoryAgent(step, ScriptedGenerator(script), store=folder / "m.db")

    def state():
        with agent() as reopened:
            memory = memory_of(reopened)
            assert reopened.journal.verify().ok
            return {entry.content for entry in (*memory.entries(), *memory.entries(ARCHIVE.name))}

    with agent() as first:
        first.add("Marta: I live in Oslo.\nMarta: I like tea.", namespace=MARTA)
        (operation,) = first.add("Marta: In Rome.\nIvan: Well.", namespace=MARTA).operations
    after = {"Marta city Oslo", "Marta drink tea", "Marta: I live in Oslo.", "Marta: I like tea."}
    whole, before, halves = (folder / "m.db").read_bytes(), state(), []
    for point in itertools.count(1):
        for path in folder.iterdir():
            path.unlink()
        (folder / "m.db").write_bytes(whole)
        if (pid := os.fork()) == 0:
            try:
                second = agent()
                second.memory(MARTA)
                arm(point)
                second.undo(operation, namespace=MARTA)
            finally:
                os._exit(0)
        done = os.WIFEXITED(os.waitpid(pid, 0)[1])
        now = state()
        if now not in ([after] if done else [before, after]):
            halves.append(sorted(now))
        if done:
            break
    return {"points": point - 1, "halves": halves}


if __name__ == "__main__":
    arguments = list(map(int, sys.argv[2:]))
    print(
        json.dumps(
            kills(Path(sys.argv[1]), *arguments) if arguments else undone_by_half(Path(sys.argv[1]))
        )
    )
