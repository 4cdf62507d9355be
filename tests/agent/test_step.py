"""The spine: what a prompt looks like token by token, what can never be in it, and what a
completion does to a memory."""

import importlib.util
import unicodedata
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.agent.codecs import CODECS
from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.models.registry import make_tokenizer
from memalpha.types import Chunk, Operation, OperationKind, ResultCode

INSERT, UPDATE, DELETE, REPLACE = OperationKind
TEMPLATES = ("nano", "qwen3")


def tokenizer_of(template):
    tokenizer = make_tokenizer(["Marta moved to Rome from Oslo today", "facts city pet"], 4096)
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


def test_several_sections_are_shown_under_their_names_blocks_whole():
    agent = agent_of(schema="mem_alpha")
    memory = agent.new_memory()
    assert view_of(agent, memory, "x") == ["empty"]
    memory.apply(Operation(INSERT, "episodic", "went home\nat night", timestamp="2024"))
    memory.apply(Operation(INSERT, "semantic", "b"))
    memory.apply(Operation(REPLACE, "core", "Ann\nof Oslo"))
    memory.apply(Operation(INSERT, "semantic", "a"))
    memory.apply(Operation(UPDATE, "semantic", "B", "2"))
    expected = [
        "core:",
        "Ann\\nof Oslo",
        "semantic:",
        "2 B",
        "3 a",
        "episodic:",
        "1 [2024] went home\\nat night",
    ]
    assert view_of(agent, memory, "x") == expected


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
    decode = agent.encoder.tokenizer.decode
    for prompt, memory in zip(prompts, memories, strict=True):
        assert decode(prompt.ids[: prompt.shared]).endswith(
            "Marta moved to Rome\n</chunk>\n<memory>\n"
        )
        assert decode(prompt.ids[prompt.shared :]).startswith(
            "\n".join(view_of(agent, memory, chunk.text)) + "\n</memory>"
        )
    other = prompt_of(agent, memories[0], Chunk("Marta moved to Oslo", "2024"))
    assert other.ids[: other.shared] != prompts[0].ids[: prompts[0].shared]


# -------------------------------------------------------------------------------------------- what
# data cannot do
POSING = (
    "semantic:",
    "Episodic :",
    "\uff53emantic\uff1a",
    "se\u200bmantic:",
    "1 Marta city Rome",
    "\uff11 Marta",
    "1\u3000Marta",
)
POSING += ("\u200b Marta city Oslo", "\u00a8 Marta", "\u20601 Marta", "core:", "\u00b9 Marta")


def structure(agent, view):
    """Kinds of a view's lines as a normalising tokenizer may read them: section names, entries, and
    others."""
    kinds = []
    for line in view:
        read = unicodedata.normalize("NFKC", line).casefold()
        read = "".join(
            char for char in read if unicodedata.category(char) not in ("Cc", "Cf", "Mn", "Me")
        )
        entry = (
            read[:1].isspace()
            if agent.codec.names_by_text
            else (read.split() or [""])[0] in ("1", "2")
        )
        kinds.append(
            "".join(read.split())
            if "".join(read.split()) in ("core:", "semantic:", "episodic:")
            else entry
        )
    return kinds


@pytest.mark.parametrize("codec", CODECS)
def test_a_block_cannot_pose_as_a_section_or_an_entry(codec):
    agent = agent_of(codec=codec, schema="mem_alpha")
    for text in (*POSING, "Ann of Oslo", "30 years old", "semantic: x", "12 Marta"):
        memory = remember(agent, "Marta city Oslo", "Ivan", section="semantic")
        assert memory.apply(Operation(REPLACE, "core", text)).changed
        view = view_of(agent, memory, "x")
        assert structure(agent, view) == ["core:", False, "semantic:", True, True], text
        assert (view[1] == text) is (
            text not in POSING or (codec == "compact_text" and structure(agent, [text]) == [False])
        ), text


# -------------------------------------------------------------------------------------------- the
# view's budget
def slow_selection(agent, memory, retriever, text, bound=None):
    """Ids that the view shows, by the rule written out: every entry sorted, costed and looked at
    (or ``bound`` of each kind)."""
    newest = sorted(memory.entries(), key=lambda entry: -entry.updated)
    costs = {entry.id: agent.encoder.count(agent.view.line(entry)) + 1 for entry in newest}
    if sum(costs.values()) <= agent.config.view_tokens:
        return set(costs)
    newest = [entry.id for entry in newest]
    related = [hit.entry.id for hit in retriever.search(text, bound or len(newest))]
    order = []
    for i in range(max(len(related), agent.config.view_recent)):
        order += related[i : i + 1] + newest[: agent.config.view_recent][i : i + 1]
    shown, left = set(), agent.config.view_tokens
    for key in dict.fromkeys(order + newest[:bound]):
        if costs[key] <= left:
            shown.add(key)
            left -= costs[key]
    return shown


WORDS = st.lists(
    st.sampled_from(["Marta", "moved", "Rome", "Oslo", "city", "odd"]), min_size=1, max_size=12
).map(" ".join)
HISTORY = st.lists(
    st.tuples(st.sampled_from("+++++=-"), st.integers(0, 99), WORDS), min_size=1, max_size=60
)


@settings(max_examples=60, deadline=None)
@given(HISTORY, WORDS, st.sampled_from([20, 60, 150, 400]), st.sampled_from([0, 2, 5]))
def test_the_view_is_that_of_looking_at_every_entry(history, text, tokens, recent):
    agent = AgentStep(
        replace(_facts.config, view_tokens=tokens, view_recent=recent), _facts.encoder.tokenizer
    )
    memory, snapshots = agent.new_memory(), []
    followed = agent.new_retriever(memory)
    for sign, number, content in history:
        entries = memory.entries()
        if sign == "+" or not entries:
            memory.apply(Operation(INSERT, "facts", f"{content} {len(memory.changes)}"))
        else:
            target = entries[number % len(entries)].id
            update = Operation(UPDATE, "facts", content, target)
            memory.apply(update if sign == "=" else Operation(DELETE, "facts", entry_id=target))
        snapshots.append(memory.snapshot())
        if number == 99:
            memory.restore(snapshots[len(snapshots) // 2])
        if number % 4 == 0:
            agent.view.render(memory, followed, Chunk(text))
    shown = slow_selection(agent, memory, agent.new_retriever(memory), text)
    expected = [agent.view.line(entry) for entry in memory if entry.id in shown]
    assert agent.view.render(memory, followed, Chunk(text)).split("\n") == (expected or ["empty"])


_facts = agent_of()


@pytest.mark.parametrize(("tokens", "bound"), [(100, 64), (800, 200)])
def test_the_work_of_a_view_is_bounded_whatever_the_memory_holds(tmp_path, tokens, bound):
    """Counted, not timed: how many entries are costed, and how many hits are asked for."""
    (tmp_path / "open.yaml").write_text("name: open\nsections: [{name: facts}]")
    for size in (300, 3000):
        agent = agent_of(view_tokens=tokens, schema=str(tmp_path / "open.yaml"))
        memory = agent.new_memory()
        for i in range(size):
            assert memory.apply(
                Operation(INSERT, "facts", f"Marta city Oslo{' Rome' * (i % 9)} {i}")
            ).changed
        retriever, line = Mock(wraps=agent.new_retriever(memory)), agent.view.line
        agent.view.line = Mock(wraps=line)
        shown = agent.view.render(memory, retriever, Chunk("Marta moved to Rome")).split("\n")
        retriever.search.assert_called_once_with("Marta moved to Rome", bound, ["facts"])
        assert agent.view.line.call_count <= 2 * bound + len(shown)
        agent.view.line = line
        wanted = slow_selection(
            agent, memory, agent.new_retriever(memory), "Marta moved to Rome", bound
        )
        assert shown == [line(entry) for entry in memory if entry.id in wanted]


# -------------------------------------------------------------------------------------------- bad
# input
def test_a_chunk_over_the_limit_is_an_error_with_its_numbers():
    agent = agent_of(max_chunk_tokens=4)
    agent.check_chunk(Chunk("Marta moved to Rome"))
    assert agent.chunk_tokens("Marta moved to Rome") == 4
    memory = agent.new_memory()
    with pytest.raises(InputError, match="a chunk has 5 tokens") as caught:
        prompt_of(agent, memory, Chunk("Marta moved to Rome today"))
    assert "at most max_chunk_tokens = 4" in str(caught.value) and "to fix:" in str(caught.value)
    with pytest.raises(InputError, match="chunk 3 of x has 5 tokens"):
        agent.check_chunk(Chunk("Marta moved to Rome today"), where="chunk 3 of x")


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


@given(
    st.lists(
        st.tuples(
            st.sampled_from("++++=-"), st.integers(0, 9), st.text(max_size=8).filter(str.strip)
        ),
        max_size=12,
    )
)
def test_what_is_written_down_for_any_operations_does_the_same(rows):
    """``write`` and ``apply`` agree in every notation, whatever the entries read; a text is one
    line in the compact ones."""
    for codec, agent in _appliers.items():
        memory, direct, trial, operations = (
            agent.new_memory(),
            agent.new_memory(),
            agent.new_memory(),
            [],
        )
        for sign, number, text in rows:
            entries = trial.entries()
            content = " ".join(text.split()) if codec != "hermes" else text
            if sign == "+" or not entries:
                operation = Operation(INSERT, "semantic", content)
            else:
                change = (
                    (UPDATE, "semantic", content) if sign == "=" else (DELETE, "semantic", None)
                )
                operation = Operation(*change, entries[number % len(entries)].id)
            if not trial.apply(operation).changed or len({entry.content for entry in trial}) < len(
                trial
            ):
                break  # repeats have no name of their own
            operations.append(operation)
        for operation in operations:
            assert direct.apply(operation).ok
        outcome = agent.apply(memory, 0, Chunk("x"), agent.write(agent.new_memory(), operations))
        assert all(result.ok for result in outcome.results), codec
        assert [(entry.id, entry.content) for entry in memory] == [
            (entry.id, entry.content) for entry in direct
        ]


def test_limits_are_counted_with_the_policys_tokenizer():
    agent = agent_of()
    fits, over = "city, " * 24, "city, " * 24 + "city"
    codes = [
        agent.apply(agent.new_memory(), 0, Chunk("x"), f"+ {text}").results[0].code
        for text in (fits, over)
    ]
    assert codes == [ResultCode.APPLIED, ResultCode.TOO_LONG]


_appliers = {codec: agent_of(codec=codec, schema="mem_alpha") for codec in CODECS}
