"""Synthetic dialogues: an interpreter written apart replays the facts and says what every question
must be."""

import random
import re
from collections import Counter
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data.load import load_one
from memalpha.data.pools import hostile_lines, pools, read_words
from memalpha.data.synthetic import PRESETS, SyntheticConfig, generate, make_synthetic_instance
from memalpha.data.teacher import TeacherConfig, excerpt, excerpt_operations
from memalpha.data.toy import NOISE, THINGS, toy_teacher_operations, toy_vocabulary
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.types import Chunk, FactAction, Instance, OperationKind, Question
from tests.helpers.data_samples import keeper_scores, taught

MULTIPLE = {"pet", "hobby"}
ROOMY = MemorySchema("roomy", (Section("facts", SectionKind.LIST, timestamps=True),))


def words(text):
    return re.findall(r"\w+", text.lower())


@st.composite
def configs(draw):
    low = draw(st.integers(0, 4))
    chat = draw(st.integers(0 if low else 1, 3))
    p_change = draw(st.floats(0, 1))
    return SyntheticConfig(
        split=draw(st.sampled_from(["train", "test"])),
        n_chunks=draw(st.integers(1, 12)),
        people=draw(st.integers(1, 5)),
        facts_per_chunk=(low, low + draw(st.integers(0 if low else 1, 3))),
        chitchat_per_chunk=(chat, chat + draw(st.integers(0, 2))),
        p_change=p_change,
        p_retract=draw(st.floats(0, 1 - p_change)),
        p_multi=draw(st.floats(0, 1)),
        p_distractor=draw(st.floats(0, 1)),
        templates=draw(st.sampled_from(["train", "held_out", "all"])),
        p_time=1.0,
    )


# ------------------------------------------------------------------------------------------------
# pools
def test_pools_are_large_and_no_word_is_in_two_or_inside_another():
    data = read_words("pools")
    flat = []
    for row in (data["names"], *data["attributes"].values()):
        assert len(row["train"].split()) >= 30 and len(row["test"].split()) >= 20
        flat += f"{row['train']} {row['test']}".lower().split()
    assert all(word.isalpha() for word in flat) and len(flat) == len(set(flat))
    assert [(a, b) for a in flat for b in flat if a != b and a in b] == []


def test_a_third_of_the_sentences_is_held_out():
    def sentences(which):
        words = pools("train", which)
        kinds = ("state", "change", "retract", "mention")
        said = [getattr(a, kind) for a in words.attributes.values() for kind in kinds]
        return [*map(set, said), set(words.lines["chat"]), set(hostile_lines(which))]

    for old, new, both in zip(*map(sentences, ("train", "held_out", "all")), strict=True):
        assert old | new == both and not old & new
        assert 3 * len(new) >= len(both)


# ------------------------------------------------------------------------------------------------
# replay
def replay(instance):
    """Return {(subject, attribute): (live {value: chunk}, everything it ever had, retraction
    chunks)}."""
    live, ever, taken = {}, {}, {}
    for fact in instance.facts:
        key = (fact.subject, fact.attribute)
        now = live.setdefault(key, {})
        if fact.action is FactAction.STATE:
            assert fact.value not in now and fact.previous is None
            assert fact.attribute in MULTIPLE or key not in ever
            now[fact.value] = fact.chunk
        elif fact.action is FactAction.CHANGE:
            assert (
                fact.attribute not in MULTIPLE
                and list(now) == [fact.previous]
                and fact.value != fact.previous
            )
            now.clear()
            now[fact.value] = fact.chunk
        else:
            assert fact.value in now
            del now[fact.value]
            taken.setdefault(key, []).append(fact.chunk)
        ever.setdefault(key, set()).add(fact.value)
    return {key: (live[key], ever[key], taken.get(key, [])) for key in ever}


def expected_questions(instance):
    """Return {(kind, subject, attribute): (metric, answers, stale, evidence)} of every question
    that can be asked."""
    state, found = replay(instance), {}
    for (subject, attribute), (live, ever, taken) in state.items():
        stale = ever - set(live)
        if attribute in MULTIPLE:
            found["count", subject, attribute] = (
                "bound_all",
                set(live),
                stale,
                set(live.values()) | set(taken),
            )
        elif live:
            ((value, chunk),) = live.items()
            found["latest" if stale else "single", subject, attribute] = (
                "bound",
                {value},
                stale,
                {chunk},
            )
            found["time", subject, attribute] = (
                "bound",
                {instance.chunks[chunk].time},
                set(),
                {chunk},
            )
        else:
            assert any(s == subject and other for (s, _), (other, _, _) in state.items())
            found["removed", subject, attribute] = ("absent", {"none"}, stale, set(taken))
    return found


def key_of(question):
    (attribute,) = pools("train").attributes.keys() & set(words(question.text))
    assert question.subject.lower() in words(question.text)
    return question.kind, question.subject, attribute


@given(configs(), st.integers(0, 10**6), st.integers(0, 50))
@settings(max_examples=120, deadline=None)
def test_questions_are_those_of_an_independent_replay(config, seed, index):
    instance = make_synthetic_instance(index, seed, config)
    asked = {
        key_of(q): (q.metric, set(q.answers), set(q.stale), set(q.evidence))
        for q in instance.questions
    }
    assert asked == expected_questions(instance)
    assert len(asked) == len(instance.questions)
    assert [q.id for q in instance.questions] == [f"q{i}" for i in range(len(asked))]
    for question in instance.questions:
        assert not set(question.answers) & set(question.stale)
        assert len(set(question.answers)) == len(question.answers) and len(
            set(question.stale)
        ) == len(question.stale)
        if question.kind == "time":
            assert {a.lower() for a in replay(instance)[key_of(question)[1:]][0]} <= set(
                words(question.text)
            )


@given(configs(), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_lines_say_what_the_facts_say_and_nothing_else_about_the_speaker(config, seed):
    instance = make_synthetic_instance(0, seed, config)
    own = {key: {v.lower() for v in ever} for key, (_, ever, _) in replay(instance).items()}
    names = {fact.subject for fact in instance.facts}
    pool = {v.lower(): a.word for a in pools(config.split).attributes.values() for v in a.values}
    other = pools("test" if config.split == "train" else "train")
    assert all(name in pools(config.split).names for name in names)
    days = [date.fromisoformat(chunk.time) for chunk in instance.chunks]
    assert days == sorted(set(days))
    for index, chunk in enumerate(instance.chunks):
        assert not set(words(chunk.text)) & {
            w.lower() for a in other.attributes.values() for w in (*a.values, *other.names)
        }
        facts = [fact for fact in instance.facts if fact.chunk == index]
        assert len({(f.subject, f.attribute) for f in facts}) == len(facts)
        lines = [(line.split(": ")[0], words(line)) for line in chunk.text.split("\n") if line]
        told = [(who, pool[w], w) for who, line in lines for w in line[1:] if w in pool]
        said = [(f.subject, f.attribute, f.value.lower()) for f in facts]
        silent = [row for row in said if row not in told]
        assert all(
            f.action is FactAction.RETRACT
            for f, row in zip(facts, said, strict=True)
            if row in silent
        )
        about_own = [row for row in told if row[2] in own.get(row[:2], ())]
        assert about_own == [
            row for row in said if row not in silent
        ]  # in the order of the lines, chit-chat never among them
        low, high = config.chitchat_per_chunk
        assert low <= len(lines) - len(facts) <= high
        assert len(facts) <= config.facts_per_chunk[1]


@pytest.mark.parametrize("templates", ["train", "all"])
def test_hostile_lines_are_added_to_what_stays_the_same(templates):
    config = replace(PRESETS["medium"], p_change=0.6, p_retract=0.3)
    attacked = generate(300, 3, replace(config, p_hostile=0.3, hostile=templates))
    grown = []
    for plain, hostile in zip(generate(300, 3, config), attacked, strict=True):
        assert (hostile.facts, hostile.questions) == (plain.facts, plain.questions)
        for old, new in zip(plain.chunks, hostile.chunks, strict=True):
            assert Counter(old.text.split("\n")) <= Counter(new.text.split("\n"))
            grown.append(old != new)
    assert 0.25 < sum(grown) / len(grown) < 0.35


# ------------------------------------------------------------------------------------------------
# the sequence
def test_an_instance_depends_on_seed_split_index_and_config_alone():
    config = PRESETS["medium"]
    random.seed(1)
    first = generate(6, 7, config)
    random.seed(2)
    assert first[:4] == generate(4, 7, config)
    assert first[5] == make_synthetic_instance(5, 7, config)
    assert [i.id for i in first] == [f"train-7-{n}" for n in range(6)]
    others = [
        generate(6, 8, config),
        generate(6, 7, replace(config, split="test")),
        generate(6, 7, replace(config, people=5)),
    ]
    assert all(a.chunks != b.chunks for other in others for a, b in zip(first, other, strict=True))


def test_a_known_instance_does_not_change():
    chunk = make_synthetic_instance(0, 0).chunks[0]
    assert chunk.time == "2023-10-06"
    assert chunk.text.split("\n") == [
        "Irene: One hobby of mine is drawing.",
        "Alice: I own a Volvo.",
        "Diego: The traffic was awful.",
        "Irene: My instrument is the saxophone.",
        "Alice: Did you see that Porsche outside?",
        "Irene: A glass of whiskey makes me happy.",
        "Diego: The bus was maroon today.",
    ]


# ------------------------------------------------------------------------------------------------
# the teacher
def bound(question, passages):
    """Hand-written check: each answer stands with the subject in one passage and no stale value
    stands with the subject."""
    sets = [set(words(p)) | set(re.findall(r"\d{4}-\d\d-\d\d", p)) for p in passages]
    mine = [s for s in sets if question.subject.lower() in s]
    if any(stale.lower() in s for stale in question.stale for s in mine):
        return False
    return (
        bool(mine)
        if question.metric == "absent"
        else all(any(a.lower() in s for s in mine) for a in question.answers)
    )


@pytest.mark.parametrize(
    "schema", [ROOMY, MemorySchema.load("mem_alpha"), MemorySchema.load("nine_categories")]
)
def test_a_full_keeper_answers_every_question(schema):
    instances = generate(25, 0, replace(PRESETS["medium"], p_time=1.0, split="test"))
    assert keeper_scores(instances, schema, TeacherConfig(), bound) == dict.fromkeys(
        ("single", "latest", "removed", "time", "count"), 1.0
    )


def test_a_keeper_who_never_corrects_fails_on_what_changed():
    instances = generate(60, 0, replace(PRESETS["medium"], p_time=1.0))
    never = keeper_scores(instances, ROOMY, TeacherConfig(p_correct=0.0), bound)
    assert never["single"] == never["time"] == 1.0
    assert never["latest"] == never["removed"] == 0.0
    assert 0.3 < never["count"] < 0.95
    half = keeper_scores(instances, ROOMY, TeacherConfig(coverage=0.5), bound)
    assert abs(half["single"] - 0.5) < 0.1


@given(
    configs(),
    st.integers(0, 10**6),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_every_operation_changes_the_memory_it_was_meant_for(
    config, seed, coverage, p_correct, p_update, room
):
    instance = make_synthetic_instance(0, seed, config)
    schema = MemorySchema("tight", (Section("facts", SectionKind.LIST, max_entries=room),))
    memory, results = taught(instance, schema, TeacherConfig(coverage, p_correct, p_update))
    assert all(result.changed for result in results)
    assert len(memory) <= room


# ------------------------------------------------------------------------------------------------
# facts that hang on others


@st.composite
def linked_configs(draw):
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
    for attribute in pools(config.split, config.templates).attributes.values():
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
    """The facts that persons told about themselves: all but the links and what follows from
    them."""
    derived = {(who, word) for _, who, _, word, _ in links} | {
        (who, f"shared {word}") for _, who, _, word, _ in links
    }
    return [fact for fact in instance.facts if (fact.subject, fact.attribute) not in derived]


@given(linked_configs(), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_questions_are_what_following_the_links_gives(config, seed):
    instance = make_synthetic_instance(0, seed, config)
    links = links_in(instance, config)
    facts = told_facts(instance, links)
    expected = set()
    for chunk, who, other, word, value in links:
        upstream = [fact for fact in facts if (fact.subject, fact.attribute) == (other, word)]
        values = [fact.value for fact in upstream if fact.chunk <= chunk][-1:]
        assert values == [value]  # the line names the value of that session
        values += [fact.value for fact in upstream if fact.chunk > chunk]
        end = upstream[-1]
        assert end.chunk > chunk and end.action is not FactAction.STATE
        gone = end.action is FactAction.RETRACT
        kind, answers = ("absence", ("none",)) if gone else ("cascade", (end.value,))
        stale = frozenset(values) if gone else frozenset(values) - {end.value}
        expected.add((who, word, kind, answers, stale, (chunk, end.chunk)))
    asked = set()
    told = {(fact.subject, fact.attribute) for fact in instance.facts}
    for question in instance.questions:
        if question.kind in ("cascade", "absence"):
            kind, subject, word = key_of(question)
            row = (kind, question.answers, frozenset(question.stale), question.evidence)
            if question.stale:
                asked.add((subject, word, *row))
            else:  # what nobody ever told
                assert row == ("absence", ("none",), frozenset(), ())
                assert (subject, word) not in told
    assert asked == expected


# ------------------------------------------------------------------------------------------------
# the toy task and excerpts
def toys(n, seed, split="train"):
    return load_one("toy", {"n": n, "split": split}, seed)


def test_words_are_closed_distinct_and_apart():
    words = (*THINGS, *NOISE)
    assert len(THINGS) == len(NOISE) == 24
    assert len(set(toy_vocabulary())) == len(toy_vocabulary()) == 51
    assert not [(a, b) for a in words for b in words if a != b and a in b]


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_thing_of_a_chunk_is_asked_for_and_noise_is_not(split):
    for instance in toys(40, 3, split):
        words = [chunk.text.split() for chunk in instance.chunks]
        flat = [word for chunk in words for word in chunk]
        assert len(set(flat)) == 16 and set(flat) <= set(toy_vocabulary())
        expected = [
            Question(f"was {word} seen?", (word,), evidence=(place,), id=f"q{4 * place + n}")
            for place, chunk in enumerate(words)
            for n, word in enumerate(
                [q.answers[0] for q in instance.questions if q.answers[0] in chunk]
            )
        ]
        assert list(instance.questions) == expected
        assert {word for word in flat if word in THINGS} == {q.answers[0] for q in expected}
        memory = Memory(MemorySchema.load("toy"))
        assert memory.schema["facts"].max_entries == len(expected)
        operations = toy_teacher_operations(instance, 0, memory, random.Random(split))
        assert 1 <= len(operations) <= 4 and {o.content for o in operations} <= set(words[0])


TEXT = (
    "The fair of 1889 opened in Paris. It rained. "
    "A tower by Gustave Eiffel stood there. Nobody minded. People came from Lyon."
)


def test_excerpts_by_hand():
    plain = Instance("x", "test", (Chunk(TEXT),), ())
    store = Memory(MemorySchema.load("facts"))
    sentence = "The tower was built for the fair of 1889 by Gustave Eiffel and his men"
    assert excerpt(sentence.split(), 4) == "1889 by Gustave Eiffel"  # three names or numbers
    assert excerpt(sentence.split(), 40) == sentence
    assert (
        excerpt(["Paris,", "(in", "1900)", "we", "met."], 2) == "in 1900"
    )  # the first word's capital says nothing
    assert excerpt([], 5) == ""
    made = excerpt_operations(plain, 0, store, random.Random(0))
    assert [(o.kind, o.section) for o in made] == [
        (OperationKind.INSERT, "facts")
    ] * 4  # of five sentences
    assert [o.content for o in made][1:3] == ["It rained", "A tower by Gustave Eiffel stood there"]
    assert excerpt_operations(plain, 0, store, random.Random(0), TeacherConfig(0.0)) == []
