"""Random operations of every kind against a model: every state, live, rebuilt, reopened, and looked back at."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kill_worker import Model, act
from stores import MARTA, agrees, contents, indexed, rebuilt, state


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9))
def test_a_store_is_what_the_model_is(folder, seed):
    path = Path(tempfile.mkdtemp(dir=folder)) / "store.db"
    rng, model, past = random.Random(seed), Model(), {0: {}}
    store = indexed(path)
    for n in range(30):
        action = model.plan(rng, n)
        act(store.journal, store.durable(MARTA), action)
        model = model.after(action)
        memory = store.memory(MARTA)
        assert (contents(memory), memory.seq, memory.snapshot().next_id) == (model.entries, model.seq, model.next_id)
        assert state(memory) == state(rebuilt(store.durable(MARTA)))
        past = ({} if action[0] == "forget" else past) | {model.seq: dict(model.entries)}  # what was forgotten is in no past
        if n % 10 == 9:
            store.journal.close()
            store = indexed(path)
            assert agrees(store) and store.journal.verify().faults == ()
    if model.seq:
        assert {seq: contents(store.durable(MARTA).as_of(seq)) for seq in past} == past
    store.journal.close()
