"""The bound on a prompt's length holds for prompts as long as the budgets allow, and is not far
above them."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import TIME_TOKENS, AgentStep, check_context, longest_prompt
from memalpha.errors import InputError
from memalpha.models.registry import make_tokenizer
from memalpha.types import Chunk, Operation, OperationKind

TOKENIZER = make_tokenizer(["apple", "boat"], 4096)
BUDGETS = {"max_chunk_tokens": 120, "view_tokens": 90, "max_completion_length": 40}


def config_of(positions):
    inner = SimpleNamespace(max_position_embeddings=positions)
    return SimpleNamespace(get_text_config=lambda: inner)


@settings(max_examples=25)
@given(
    st.sampled_from(["facts", "mem_alpha", "nine_categories"]),
    st.booleans(),
    st.integers(0, 40),
    st.integers(1, 100),
)
def test_no_prompt_is_longer(schema, show_times, entries, words):
    agent = AgentStep(
        AgentConfig(schema=schema, codec="compact", show_times=show_times, **BUDGETS), TOKENIZER
    )
    memory = agent.new_memory()
    lists = [section.name for section in agent.schema.lists]
    for n in range(entries):
        operation = Operation(
            OperationKind.INSERT, lists[n % len(lists)], content=f"apple {n} boat"
        )
        assert memory.apply(operation, time="2024-05-01T10:00:00").ok
    for section in agent.schema.blocks:
        if section.max_tokens:
            block = Operation(
                OperationKind.REPLACE,
                section.name,
                content="apple " * (section.max_tokens - 1) + "boat",
            )
            assert memory.apply(block).ok
    chunk = Chunk("apple" + " boat" * min(words, 119), "2024-05-01T10:00:00+02:00")
    prompt = agent.prompt(memory, agent.new_retriever(memory), chunk)
    assert len(prompt.ids) <= longest_prompt(agent)


def test_the_bound_is_reached_up_to_the_room_for_a_time():
    agent = AgentStep(
        AgentConfig(schema="facts", codec="compact", show_times=False, **BUDGETS), TOKENIZER
    )
    memory = agent.new_memory()
    for n in range(200):
        memory.apply(Operation(OperationKind.INSERT, "facts", content=f"boat {n}"))
    chunk = Chunk("apple" + " boat" * 119)
    reached = len(agent.prompt(memory, agent.new_retriever(memory), chunk).ids)
    assert longest_prompt(agent) - 10 <= reached <= longest_prompt(agent)
    timed = AgentStep(
        AgentConfig(schema="facts", codec="compact", show_times=True, **BUDGETS), TOKENIZER
    )
    assert longest_prompt(timed) == longest_prompt(agent) + TIME_TOKENS


def test_what_quoting_makes_longer_is_counted_as_the_prompt_shows_it():
    agent = AgentStep(
        AgentConfig(schema="facts", codec="compact", show_times=True, **BUDGETS), TOKENIZER
    )
    memory = agent.new_memory()
    longest = max(n for n in range(1, 121) if agent.chunk_tokens("<chunk>" * n) <= 120)
    assert agent.encoder.count("<chunk>" * longest) < 120 == BUDGETS["max_chunk_tokens"]
    prompt = agent.prompt(
        memory, agent.new_retriever(memory), Chunk("<chunk>" * longest, "2024-05-01")
    )
    assert "&lt;chunk>" * longest in prompt.messages[1]["content"] and len(
        prompt.ids
    ) <= longest_prompt(agent)
    with pytest.raises(InputError, match=r"a chunk has 1[23][0-9] tokens"):
        agent.check_chunk(Chunk("<chunk>" * (longest + 1)))


def test_what_does_not_fit_the_model_is_refused_by_name():
    agent = AgentStep(AgentConfig(schema="facts", codec="compact", **BUDGETS), TOKENIZER)
    needed = longest_prompt(agent) + 40
    check_context(agent, config_of(needed))
    check_context(agent, config_of(None))
    with pytest.raises(
        InputError, match=rf"can have {needed} tokens, and the model takes {needed - 1}"
    ) as error:
        check_context(agent, config_of(needed - 1))
    assert (
        "max_chunk_tokens (now 120), view_tokens (now 90), max_completion_length (now 40)"
        in str(error.value)
    )
