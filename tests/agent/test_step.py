"""The spine: what a prompt looks like token by token, what can never be in it, and what a
completion does to a memory; rollouts in lockstep do what one alone does."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.agent.codecs import CODECS
from memalpha.agent.config import AgentConfig
from memalpha.agent.context import TIME_TOKENS, check_context, context_of, longest_prompt
from memalpha.agent.rollout import run_rollouts, sharing
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.models.registry import make_tokenizer
from memalpha.types import (
    Chunk,
    Completion,
    Instance,
    Operation,
    OperationKind,
    Prompt,
    ResultCode,
    Sampling,
    StopReason,
)
from tests.helpers.scripted import ScriptedGenerator

INSERT, UPDATE, DELETE, REPLACE = OperationKind
TEMPLATES = ("nano", "qwen3")
FRUIT = "apple boat candle door engine feather"


def tokenizer_of(template):
    tokenizer = make_tokenizer(
        ["Marta moved to Rome from Oslo today", "facts city pet", FRUIT], 4096
    )
    if template == "qwen3":
        package = Path(importlib.util.find_spec("trl").origin).parent
        tokenizer.chat_template = (package / "chat_templates" / "qwen3.jinja").read_text()
    return tokenizer


def agent_of(template="nano", **settings):
    return AgentStep(
        AgentConfig(**{"codec": "compact", "schema": "facts", **settings}), tokenizer_of(template)
    )


def remember(agent, *contents, section="facts", **more):
    memory = agent.new_memory()
    for content in contents:
        assert memory.apply(Operation(INSERT, section, content, **more)).changed
    return memory


def prompt_of(agent, memory, chunk):
    return agent.prompt(memory, agent.new_retriever(memory), chunk)


def view_of(agent, memory, text):
    return agent.view.render(memory, agent.new_retriever(memory), Chunk(text)).split("\n")


# --------------------------------------------------------------------------------------------
# layout
def test_the_prompt_token_by_token():
    agent = agent_of()
    memory = remember(agent, "Marta city Oslo", timestamp="2024-01-02")
    prompt = prompt_of(agent, memory, Chunk("Marta moved to Rome", "2024-05-06"))
    user = "<chunk>\n[2024-05-06]\nMarta moved to Rome\n</chunk>\n<memory>\n1 [2024-01-02] Marta city Oslo\n</memory>"
    system = "Keep the memory right and short. One operation per line:\n+ text\n= id text\n- id"
    assert list(prompt.messages) == [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
    ]
    decode = agent.encoder.tokenizer.decode
    turns = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"
    assert decode(prompt.ids) == turns
    assert decode(prompt.ids[: prompt.shared]).endswith(
        "[2024-05-06]\nMarta moved to Rome\n</chunk>\n<memory>\n"
    )
    assert decode(prompt.ids[prompt.shared :]).startswith(
        "1 [2024-01-02] Marta city Oslo\n</memory>"
    )


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_rollouts_of_a_chunk_share_everything_up_to_the_memory(template, codec):
    agent = agent_of(template, codec=codec)
    memories = [
        agent.new_memory(),
        remember(agent, "a"),
        remember(agent, "Marta city Oslo", "</memory>"),
    ]
    chunk = Chunk("Marta moved to Rome", "2024")
    prompts = [prompt_of(agent, memory, chunk) for memory in memories]
    assert len({prompt.shared for prompt in prompts}) == 1
    assert len({prompt.ids[: prompt.shared] for prompt in prompts}) == 1
    assert len({prompt.ids for prompt in prompts}) == 3
    other = prompt_of(agent, memories[0], Chunk("Marta moved to Oslo", "2024"))
    assert other.ids[: other.shared] != prompts[0].ids[: prompts[0].shared]


# -------------------------------------------------------------------------------------------- what
# data cannot do
HEADS = ("semantic:", "Episodic :", "\uff53emantic\uff1a", "se\u200bmantic:", "core:")
INDENTED = ("\u200b Marta city Oslo", "\u00a8 Marta")
NUMBERED = ("1 Marta city Rome", "\uff11 Marta", "1\u3000Marta", "\u20601 Marta", "\u00b9 Marta")


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_cannot_pose_as_a_section_or_an_entry(codec):
    """Here entries begin with their number, or with a blank where they are named by text."""
    agent = agent_of(codec=codec, schema="mem_alpha")
    honest = ("Ann of Oslo", "30 years old", "semantic: x", "12 Marta")
    if agent.codec.names_by_text:
        honest += NUMBERED
    for text in (*HEADS, *INDENTED, *NUMBERED, *honest):
        memory = remember(agent, "Marta city Oslo", "Ivan", section="semantic")
        assert memory.apply(Operation(REPLACE, "core", text)).changed
        assert (view_of(agent, memory, "x")[1] == text) is (text in honest), text


# -------------------------------------------------------------------------------------------- the
# view's budget
def slow_selection(agent, memory, retriever, text):
    """Ids that the view shows, by the rule written out: every entry sorted, costed and looked
    at."""
    newest = sorted(memory.entries(), key=lambda entry: -entry.updated)
    costs = {entry.id: agent.encoder.count(agent.view.line(entry)) + 1 for entry in newest}
    if sum(costs.values()) <= agent.config.view_tokens:
        return set(costs)
    newest = [entry.id for entry in newest]
    ranked = [
        (place, number, hit.entry.id)
        for number, line in enumerate(text.split("\n"))
        for place, hit in enumerate(retriever.search(line, len(newest)))
    ]
    related = list(dict.fromkeys(key for _, _, key in sorted(ranked)))
    order = []
    for i in range(max(len(related), agent.config.view_recent)):
        order += related[i : i + 1] + newest[: agent.config.view_recent][i : i + 1]
    shown, left = set(), agent.config.view_tokens
    for key in dict.fromkeys(order + newest):
        if costs[key] <= left:
            shown.add(key)
            left -= costs[key]
    return shown


WORDS = st.lists(
    st.sampled_from(["Marta", "moved", "Rome", "Oslo", "city", "odd"]), min_size=1, max_size=12
).map(" ".join)
LINES = st.lists(WORDS, min_size=1, max_size=3).map("\n".join)
HISTORY = st.lists(
    st.tuples(st.sampled_from("+++++=-"), st.integers(0, 99), WORDS), min_size=1, max_size=60
)


@settings(max_examples=60, deadline=None)
@given(HISTORY, LINES, st.sampled_from([20, 60, 150, 400]), st.sampled_from([0, 2, 5]))
def test_the_view_is_that_of_looking_at_every_entry(history, text, tokens, recent):
    agent = AgentStep(
        replace(_facts.config, view_tokens=tokens, view_recent=recent), _facts.encoder.tokenizer
    )
    memory = agent.new_memory()
    followed = agent.new_retriever(memory)
    for sign, number, content in history:
        entries = memory.entries()
        if sign == "+" or not entries:
            memory.apply(Operation(INSERT, "facts", f"{content} {len(memory.changes)}"))
        else:
            target = entries[number % len(entries)].id
            update = Operation(UPDATE, "facts", content, target)
            memory.apply(update if sign == "=" else Operation(DELETE, "facts", entry_id=target))
        if number % 4 == 0:
            agent.view.render(memory, followed, Chunk(text))
    shown = slow_selection(agent, memory, agent.new_retriever(memory), text)
    expected = [agent.view.line(entry) for entry in memory if entry.id in shown]
    assert agent.view.render(memory, followed, Chunk(text)).split("\n") == (expected or ["empty"])


_facts = agent_of()


# -------------------------------------------------------------------------------------------- bad
# input
def test_limits_are_counted_with_the_policys_tokenizer_and_an_error_says_both_numbers():
    agent = agent_of(max_chunk_tokens=4)
    agent.check_chunk(Chunk("Marta moved to Rome"))
    assert agent.chunk_tokens("Marta moved to Rome") == 4
    memory = agent.new_memory()
    results = [
        agent.apply(memory, 0, Chunk("x"), f"+ {text}").results[0].code
        for text in ("city, " * 24, "city, " * 24 + "city")
    ]
    assert results == [ResultCode.APPLIED, ResultCode.TOO_LONG]
    with pytest.raises(InputError, match="a chunk has 5 tokens") as caught:
        prompt_of(agent, memory, Chunk("Marta moved to Rome today"))
    assert "at most max_chunk_tokens = 4" in str(caught.value) and "to fix:" in str(caught.value)


# -------------------------------------------------------------------------------------------- tools
def test_hermes_announces_tools_where_the_template_takes_them():
    agent = agent_of("qwen3", codec="hermes", schema="mem_alpha")
    prompt = prompt_of(agent, agent.new_memory(), Chunk("x"))
    text = agent.encoder.tokenizer.decode(prompt.ids)
    assert text.count('"name": "memory_insert"') == 1 and "<tools>" in text
    assert "memory_insert(section, content" not in text
    assert text.endswith(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )  # thinking is switched off
    # A chat server is given messages and no tools, so these spell them out.
    assert "memory_insert(section, content, timestamp?)" in prompt.messages[0]["content"]


# --------------------------------------------------------------------------------------------
# completions
def test_a_completion_is_applied_in_order_with_its_errors_in_their_places():
    agent = agent_of()
    memory = remember(agent, "Marta city Oslo", timestamp="2023")
    text = "+ Marta pet dog\nwhat?\n= 1 Marta city Rome\n- 9\n+ Marta pet dog\n- 2"
    outcome = agent.apply(memory, 4, Chunk("x", "2024"), text)
    codes = [result.code.value for result in outcome.results]
    assert codes == ["applied", "unparsed", "applied", "unknown_id", "duplicate", "applied"]
    assert [result.entry_id for result in outcome.results] == ["2", None, "1", None, "2", "2"]
    assert [(bool(c.before), bool(c.after)) for c in outcome.changes] == [
        (False, True),
        (True, True),
        (True, False),
    ]
    assert list(outcome.changes) == memory.changes[1:]
    (entry,) = memory
    assert (entry.content, entry.timestamp, entry.source_chunk) == ("Marta city Rome", "2024", 4)


def test_entries_are_found_by_the_text_that_the_view_shows():
    agent = agent_of(codec="compact_text", schema="mem_alpha")
    memory = agent.new_memory()
    for section, content in (
        ("episodic", "Ann\nof Oslo"),
        ("semantic", "pet dog"),
        ("semantic", "<memory> x"),
        ("episodic", "pet dog"),
    ):
        assert memory.apply(
            Operation(INSERT, section, content, timestamp="2023" if section == "episodic" else None)
        ).changed
    assert view_of(agent, memory, "x") == [
        "semantic:",
        " pet dog",
        " &lt;memory> x",
        "episodic:",
        " [2023] Ann\\nof Oslo",
        " [2023] pet dog",
    ]
    text = "= &lt;memory> x\n> y\n- pet dog\n- pet dog\n- [2023] pet dog\n- nowhere\n= [2023] Ann\\nof Oslo\n> Ann of Rome\n- y"
    outcome = agent.apply(memory, 4, Chunk("x"), text)
    codes = [(result.code.value, result.entry_id) for result in outcome.results]
    unknown = ("unknown_id", None)
    assert codes == [
        ("applied", "3"),
        ("applied", "2"),
        ("applied", "4"),
        unknown,
        unknown,
        ("applied", "1"),
        ("applied", "3"),
    ]
    assert [(entry.id, entry.content) for entry in memory] == [("1", "Ann of Rome")]


# --------------------------------------------------------------------------------------------
# the longest prompt
BUDGETS = {"max_chunk_tokens": 120, "view_tokens": 90, "max_completion_length": 40}


@settings(max_examples=25)
@given(
    st.sampled_from(["facts", "mem_alpha", "nine_categories"]),
    st.booleans(),
    st.integers(0, 40),
    st.integers(1, 100),
)
def test_no_prompt_is_longer(schema, show_times, entries, words):
    agent = agent_of(schema=schema, show_times=show_times, **BUDGETS)
    memory, lists = agent.new_memory(), agent.schema.lists
    for n in range(entries):
        insert = Operation(INSERT, lists[n % len(lists)].name, f"Marta {n} city")
        assert memory.apply(insert, time="2024-05-01T10:00:00").ok
    for section in agent.schema.blocks:
        block = "Marta " * (section.max_tokens - 1) + "city"
        assert memory.apply(Operation(REPLACE, section.name, block)).ok
    chunk = Chunk("Marta" + " city" * words, "2024-05-01T10:00:00+02:00")
    assert len(prompt_of(agent, memory, chunk).ids) <= longest_prompt(agent)


def test_the_bound_is_reached_and_a_model_made_for_less_is_refused():
    agent = agent_of(show_times=False, **BUDGETS)
    memory = remember(agent, *[f"city {n}" for n in range(60)])
    reached, bound = prompt_of(agent, memory, Chunk("Marta" + " city" * 119)), longest_prompt(agent)
    assert bound - 10 <= len(reached.ids) <= bound
    assert longest_prompt(agent_of(show_times=True, **BUDGETS)) == bound + TIME_TOKENS
    model = SimpleNamespace(max_position_embeddings=bound + 40)
    check_context(agent, SimpleNamespace(get_text_config=lambda: model))
    model.max_position_embeddings -= 1
    with pytest.raises(InputError, match=f"have {bound + 40} tokens together, but the model takes"):
        check_context(agent, SimpleNamespace(get_text_config=lambda: model))


@pytest.mark.parametrize(
    "window",
    [
        {"sliding_window": 0},
        {"sliding_window": 0, "layer_types": ["full_attention", "sliding_attention"]},
        {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 0}},
    ],
    ids=["every layer", "some layers", "longrope"],
)
def test_a_window_below_the_bound_is_refused_as_the_generator_refuses_it(window):
    agent = agent_of(show_times=False, **BUDGETS)
    needed = longest_prompt(agent) + 40

    def config_of(tokens):
        text = json.loads(json.dumps(window).replace(": 0", f": {tokens}"))
        model = SimpleNamespace(max_position_embeddings=10**6, **text)
        return SimpleNamespace(get_text_config=lambda: model)

    check_context(agent, config_of(needed))
    assert context_of(config_of(needed)) == needed
    with pytest.raises(InputError, match=rf"takes {needed - 1} \(its window\)"):
        check_context(agent, config_of(needed - 1))
    full = SimpleNamespace(
        max_position_embeddings=10**6, sliding_window=8, layer_types=["full_attention"]
    )
    check_context(agent, SimpleNamespace(get_text_config=lambda: full))


# --------------------------------------------------------------------------------------------
# rollouts in lockstep
SAMPLING = Sampling(max_new_tokens=24)


def instance_of(name, *texts):
    return Instance(
        name, "test", tuple(Chunk(text, f"2024-03-0{i + 1}") for i, text in enumerate(texts)), ()
    )


INSTANCES = [
    instance_of("long", "apple boat", "candle apple", "door", "engine engine"),
    instance_of("short", "feather"),
    instance_of("middle", "boat door", "apple apple", "boat"),
    instance_of("again", "apple boat", "candle apple", "door", "engine engine"),
]


def answer(prompt):
    """Store the chunk's words; once the memory shows entry 2, delete entry 1 and say something that
    is no call."""
    chunk, view = prompt.messages[1]["content"].split("</chunk>")
    lines = [f"+ {word}" for word in chunk.split("\n")[2].split()]
    return "\n".join([*lines, "- 1", "well"] if "\n2 " in view else lines)


@pytest.fixture
def agent():
    return agent_of(show_times=True)


def test_rollouts_of_a_chunk_share_what_their_prompts_have_in_common():
    prompts = [
        Prompt((), ids, shared)
        for ids, shared in [
            ((1, 2, 3, 4, 5), 2),
            ((7, 2, 3), 1),
            ((1, 2, 3, 4, 6), 2),
            ((8, 8, 9), 2),
            ((7, 2, 3), 1),
            ((1, 2, 3), 2),
        ]
    ]
    assert [prompt.shared for prompt in sharing(prompts)] == [
        3,
        3,
        3,
        2,
        3,
        3,
    ]  # alone, (8, 8, 9) keeps its own
    assert [replace(prompt, shared=0) for prompt in sharing(prompts)] == [
        replace(prompt, shared=0) for prompt in prompts
    ]


def test_rollouts_in_lockstep_hold_what_each_does_alone(agent):
    generator = Mock(wraps=ScriptedGenerator(answer, agent.encoder.tokenizer))
    rollouts = run_rollouts(INSTANCES, agent, generator, SAMPLING)
    assert [len(call.args[0]) for call in generator.generate.mock_calls] == [4, 3, 3, 2]
    for instance, rollout in zip(INSTANCES, rollouts, strict=True):
        memory = agent.new_memory()
        retriever = agent.new_retriever(memory)
        for index, (chunk, step) in enumerate(zip(instance.chunks, rollout.steps, strict=True)):
            alone = agent.prompt(memory, retriever, chunk)
            assert (step.chunk_index, step.prompt.ids) == (index, alone.ids)
            assert step.completion.text == answer(alone)
            assert step.outcome == agent.apply(memory, index, chunk, step.completion.text)
            assert (step.memory_tokens, step.entries) == (memory.tokens, len(memory))
        assert memory.snapshot() == rollout.memory.snapshot()
    # By hand: apple and boat; candle and (again) apple, then 1 goes; door, and 1 is no more; engine
    # once.
    assert [(entry.id, entry.content, entry.timestamp) for entry in rollouts[0].memory] == [
        ("2", "boat", "2024-03-01"),
        ("3", "candle", "2024-03-02"),
        ("4", "door", "2024-03-03"),
        ("5", "engine", "2024-03-04"),
    ]
    assert [hit.entry.id for hit in rollouts[0].retriever.search("candle", 3)] == ["3"]


@pytest.mark.parametrize(("seed", "seeds"), [(None, [None, None, None]), (7, [7, 8, 9])])
def test_sampling_is_handed_on_with_a_seed_for_each_chunk(agent, seed, seeds):
    generator = Mock(generate=Mock(return_value=[Completion((), ".", StopReason.END)]))
    sampling = Sampling(max_new_tokens=24, temperature=0.7, top_p=0.9, top_k=5, seed=seed)
    (rollout,) = run_rollouts([INSTANCES[2]], agent, generator, sampling)
    assert [call.args[1] for call in generator.generate.mock_calls] == [
        replace(sampling, seed=value) for value in seeds
    ]
    assert len(rollout.memory) == 0 and all(step.outcome.results == () for step in rollout.steps)
