"""The registry: every source loads, unknown names and options are listed, options are converted."""

from dataclasses import dataclass, replace
from typing import Literal

import pytest

from memalpha.data.options import parse_options
from memalpha.data.registry import SOURCES, SyntheticOptions, get_source
from memalpha.data.source import LoadResult, Source
from memalpha.data.synthetic import PRESETS, generate
from memalpha.data.toy import toy_generate
from memalpha.errors import InputError


def test_the_names_are_their_keys():
    assert {"memalpha", "squad", "synthetic", "toy"} <= set(SOURCES)
    for name, source in SOURCES.items():
        assert source.name == name and source.description
        assert source.parse({}) == source.options()  # every option has a default


def test_an_unknown_name_lists_them_all():
    with pytest.raises(
        InputError,
        match="unknown data source 'squadd'\n  expected: one of babi, banking77, booksum, clinc150, csabstruct, hotpotqa, ",
    ):
        get_source("squadd")


@pytest.mark.parametrize(("written", "name"), [("HotpotQA", "hotpotqa"), ("pubmed-rct", "pubmed_rct"), ("TREC_fine", "trec_fine")])
def test_case_and_hyphens_of_a_name_do_not_matter(written, name):
    assert get_source(written).name == name


@pytest.mark.parametrize("name", ["squad", "memalpha"])
def test_a_source_that_reads_wants_an_input(name):
    with pytest.raises(InputError, match=f"source '{name}' reads a file and none was given"):
        get_source(name).load()


@pytest.mark.parametrize("name", ["synthetic", "toy"])
def test_a_generated_source_wants_none(name):
    with pytest.raises(InputError, match=f"source '{name}' is generated and was given 'file.json'"):
        get_source(name).load("file.json")


def test_synthetic_is_the_generator_with_the_presets_options():
    result = get_source("synthetic").load(options={"n": "4", "preset": "medium", "split": "test", "facts_per_chunk": "1,2"}, seed=9)
    assert result.total == 4
    config = replace(PRESETS["medium"], split="test", facts_per_chunk=(1, 2))
    assert list(result.instances) == generate(4, 9, config)
    assert SyntheticOptions(p_change=0.0).config() == replace(PRESETS["small"], p_change=0.0)  # a zero is not "as in the preset"


def test_toy_is_the_generator():
    result = get_source("toy").load(options={"n": 3, "split": "test"}, seed=2)
    assert list(result.instances) == toy_generate(3, 2, "test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "option 'n' is 0"),
        ({"preset": "huge"}, "option 'preset' is 'huge'\n  expected: one of small, medium, long"),
        ({"people": 10_000}, "people is 10000"),
        ({"p_change": 2}, "p_change is 2"),
        ({"split": "dev"}, "option 'split' of source 'synthetic' is 'dev'\n  expected: one of 'train', 'test'"),
    ],
)
def test_options_of_synthetic_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        get_source("synthetic").load(options=options)


# ------------------------------------------------------------------------------------------------ options
@dataclass(frozen=True)
class Options:
    n: int = 1
    p: float = 0.5
    on: bool = False
    name: str = "x"
    pair: tuple[int, int] = (1, 2)
    limit: int | None = None
    kind: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("n", "10", 10),
        ("n", -3, -3),
        ("p", "0.25", 0.25),
        ("p", 1, 1.0),
        ("p", "1e-3", 1e-3),
        ("on", "true", True),
        ("on", False, False),
        ("name", "10", "10"),
        ("name", "", ""),
        ("pair", "80-160", (80, 160)),
        ("pair", "80,160", (80, 160)),
        ("pair", "[80, 160]", (80, 160)),
        ("pair", [3, 5], (3, 5)),
        ("limit", "null", None),
        ("limit", "7", 7),
        ("limit", None, None),
        ("kind", "b", "b"),
    ],
)
def test_options_are_converted(name, given, wanted):
    value = getattr(parse_options(Options, {name: given}, "s"), name)
    assert value == wanted and type(value) is type(wanted)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("n", "ten"),
        ("n", 1.5),
        ("n", True),
        ("n", None),
        ("n", "1: {"),
        ("p", "half"),
        ("p", False),
        ("p", "nan"),
        ("on", 1),
        ("on", "maybe"),
        ("name", 3),
        ("pair", "80"),
        ("pair", [1, 2, 3]),
        ("pair", [1, "2"]),
        ("pair", [True, 2]),
        ("kind", "c"),
    ],
)
def test_options_of_another_type_are_refused(name, given):
    with pytest.raises(InputError, match=f"option '{name}' of source 's' is "):
        parse_options(Options, {name: given}, "s")


def test_unknown_options_are_listed():
    with pytest.raises(InputError, match="source 's' has no option 'm', 'z'\n  expected: some of n, p, on"):
        parse_options(Options, {"z": 1, "n": 2, "m": 3}, "s")


def test_a_new_source_is_a_loader_and_a_line():
    """What whoever adds one may rely on: parsed options, the seed, the counter; counts that arrive with the instances."""

    def loader(source, options, seed, count_tokens):
        result = LoadResult()

        def instances():
            result.skip("why", options.n)
            result.skip("never", 0)
            result.malformed("line 1: broken\n  expected: whole", 0)
            yield (source, seed, count_tokens("a b"))

        result.instances = instances()
        return result

    result = Source("s", "d", loader, Options).load("in", {"n": "5"}, 7)
    assert not result.skipped
    assert list(result.instances) == [("in", 7, 2)]
    assert result.skipped == {"why": 5, "malformed": 1} and result.problems == ["line 1: broken; expected: whole"]
