"""Facts that hang on others: an interpreter written apart reads the *lines*, follows the links, and says what questions must be."""

import hashlib
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data.pools import pools
from memalpha.data.synthetic import PRESETS, SyntheticConfig, generate, make_instance
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.types import FactAction

ROOMY = MemorySchema("roomy", (Section("facts", SectionKind.LIST, timestamps=True),))
DEPENDENT = PRESETS["dependent"]

# sha256 of repr(generate(n, 5, preset)), taken before dependences existed.
BEFORE = {
    ("small", "train", "train"): "73bc46961019a0ef",
    ("small", "test", "all"): "60657485cad63e6c",
    ("medium", "train", "held_out"): "ce8a9558091be4a3",
    ("medium", "test", "train"): "38443c1dc99b2ee8",
    ("long", "train", "train"): "784b9c0b9386d9df",
    ("long", "test", "all"): "a7d4b59c35c17375",
}


@pytest.mark.parametrize(("preset", "split", "templates"), BEFORE)
def test_without_the_rates_data_are_byte_for_byte_what_they_were(preset, split, templates):
    n = {"small": 20, "medium": 10, "long": 3}[preset]
    made = generate(n, 5, replace(PRESETS[preset], split=split, templates=templates))
    assert hashlib.sha256(repr(made).encode()).hexdigest()[:16] == BEFORE[preset, split, templates]


@st.composite
def configs(draw):
    p_change = draw(st.floats(0.1, 0.8))
    return SyntheticConfig(
        split=draw(st.sampled_from(["train", "test"])),
        n_chunks=draw(st.integers(2, 8)),
        people=draw(st.integers(2, 5)),
        p_change=p_change,
        p_retract=draw(st.floats(0, 1 - p_change)),
        templates=draw(st.sampled_from(["train", "held_out", "all"])),
        p_time=1.0,
        cascade=draw(st.floats(0, 1)),
        absence=draw(st.sampled_from([0.0, 0.3, 1.0])),
    )


def links_in(instance, config):
    """Read the links off the lines: [(chunk, follower, other, attribute, value said)]."""
    found = []
    for attribute in pools(config.split, config.templates).attributes:
        for sentence in attribute.share:
            parts = {"v": r"(?P<v>\w+)", "a": "an?", "other": "OTHER"}
            pattern = sentence.replace(".", r"\.").format(**parts)
            pattern = pattern.replace("OTHER", r"(?P<other>\w+)", 1).replace("OTHER", "(?P=other)")
            for index, chunk in enumerate(instance.chunks):
                for line in chunk.text.split("\n"):
                    who, said = line.split(": ", 1)
                    if match := re.fullmatch(pattern, said):
                        found.append((index, who, match["other"], attribute.word, match["v"]))
    return found


def told_facts(instance, links):
    """The facts that persons told about themselves: all but the links and what follows from them."""
    derived = {(who, word) for _, who, _, word, _ in links} | {(who, f"shared {word}") for _, who, _, word, _ in links}
    return [fact for fact in instance.facts if (fact.subject, fact.attribute) not in derived]


@given(configs(), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_questions_are_what_following_the_links_gives(config, seed):
    instance = make_instance(0, seed, config)
    links = links_in(instance, config)
    facts = told_facts(instance, links)
    expected = {}
    for chunk, who, other, word, value in links:
        upstream = [fact for fact in facts if (fact.subject, fact.attribute) == (other, word)]
        assert not any((fact.subject, fact.attribute) == (who, word) for fact in facts)
        values = [fact.value for fact in upstream if fact.chunk <= chunk][-1:]
        assert values == [value]  # the line names the value of that session
        values += [fact.value for fact in upstream if fact.chunk > chunk]
        end = upstream[-1]
        assert end.chunk > chunk and end.action is not FactAction.STATE
        gone = end.action is FactAction.RETRACT
        stale = set(values) if gone else set(values) - {end.value}
        answers = ("none",) if gone else (end.value,)
        expected[who, word] = ("absence" if gone else "cascade", answers, frozenset(stale), (chunk, end.chunk))
    asked = [question for question in instance.questions if question.kind in ("cascade", "absence")]
    attributes = {attribute.word for attribute in pools("train").attributes}
    for question in asked:
        (word,) = attributes & set(re.findall(r"\w+", question.text))
        row = (question.kind, question.answers, frozenset(question.stale), question.evidence)
        if question.stale:
            assert row == expected.pop((question.subject, word))
        else:
            assert row == ("absence", ("none",), frozenset(), ())
            assert not any((fact.subject, fact.attribute) == (question.subject, word) for fact in instance.facts)
            assert any(fact.subject == question.subject for fact in facts)
        assert question.metric == ("bound" if question.kind == "cascade" else "absent")
    assert expected == {}
    assert [question.id for question in instance.questions] == [f"q{i}" for i in range(len(instance.questions))]


@given(configs(), st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_a_dialogue_with_links_is_the_one_without_and_a_line_a_link(config, seed):
    with_links = make_instance(0, seed, config)
    without = make_instance(0, seed, replace(config, cascade=0.0, absence=0.0))
    links = links_in(with_links, config)
    for index, (more, fewer) in enumerate(zip(with_links.chunks, without.chunks, strict=True)):
        lines, plain = more.text.split("\n"), fewer.text.split("\n")
        assert [line for line in lines if line in plain] == plain and more.time == fewer.time
        assert len(lines) - len(plain) == sum(link[0] == index for link in links)
    assert told_facts(with_links, links) == list(without.facts)
    assert with_links.questions[: len(without.questions)] == without.questions
    assert [fact.chunk for fact in with_links.facts] == sorted(fact.chunk for fact in with_links.facts)
