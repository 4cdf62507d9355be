"""kill -9 at random moments and write points: what was acknowledged is there, nothing is half
there. Without kills, too."""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kill_worker import Model, act
from stores import MARTA, agrees, contents, durable_of, indexed, memory_of, rebuilt, state

WORKER = Path(__file__).with_name("kill_worker.py")
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


def worked(*arguments):
    paths = [os.environ.get("PYTHONPATH", ""), WORKER.parent, WORKER.parents[1], WORKER.parents[2]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path)}
    done = subprocess.run(
        [sys.executable, WORKER, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_an_undo_that_is_killed_has_taken_back_an_entry_and_its_lines_or_nothing(folder):
    result = worked(folder)
    assert result["points"] > 20 and result["halves"] == []


@pytest.mark.parametrize("trials", [24, pytest.param(600, marks=SLOW)])
def test_a_store_whose_writer_is_killed(folder, trials):
    counts = worked(folder, trials, 1)
    assert (
        counts["acknowledged"] > trials
        and 0 < counts["in_flight_kept"] < counts["in_flight"] > trials / 4
    )


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9))
def test_a_store_is_what_the_model_is(folder, seed):
    path = Path(tempfile.mkdtemp(dir=folder)) / "store.db"
    rng, model, past = random.Random(seed), Model(), {0: {}}
    store = indexed(path)
    for n in range(30):
        action = model.plan(rng, n)
        act(store.journal, durable_of(store, MARTA), action)
        model = model.after(action)
        memory = memory_of(store, MARTA)
        assert (contents(memory), memory.clock - 1, memory.snapshot().next_id) == (
            model.entries,
            model.seq,
            model.next_id,
        )
        assert state(memory) == state(rebuilt(durable_of(store, MARTA)))
        past = ({} if action[0] == "forget" else past) | {
            model.seq: dict(model.entries)
        }  # what was forgotten is in no past
        if n % 10 == 9:
            store.journal.close()
            store = indexed(path)
            assert agrees(store) and store.journal.verify().faults == ()
    if model.seq:
        assert {seq: contents(durable_of(store, MARTA).as_of(seq)) for seq in past} == past
    store.journal.close()
