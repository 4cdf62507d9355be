"""Instances of a folder, a file or a source; a source prepared to a folder.

A prepared folder is ``instances.parquet`` and ``manifest.json``. It is written under a temporary
name and renamed last; instances stream. The same source, input, options, seed and token counter
give the same bytes.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from memalpha import __version__
from memalpha.data import natural, synthetic, toy
from memalpha.data.chunks import count_words_and_signs
from memalpha.data.leaks import LeakCheck, LeakError, without
from memalpha.data.published import (
    babi,
    banking77,
    beam,
    booksum,
    clinc150,
    csabstruct,
    hotpotqa,
    hwu64,
    locomo,
    locomo_plus,
    longmemeval,
    mem_alpha,
    memoryagentbench,
    msc,
    musique,
    perltqa,
    pubmed_rct,
    qmsum,
    sgd,
    squad,
    trec,
)
from memalpha.data.rows import PARQUET_NAME, iter_parquet, read_instances, write_parquet
from memalpha.data.source import Source, Tally
from memalpha.errors import InputError, SchemaError
from memalpha.files import file_sha256, replacing_folder
from memalpha.plugins import PLUGIN_GROUPS, find_plugins, load_plugin
from memalpha.types import Instance, JsonMapping, JsonObject, TokenCounter

MANIFEST_NAME = "manifest.json"
_TOKENS = ("chunks", "questions", "longest_chunk")
_MODULES = (
    *(squad, hotpotqa, musique, babi, booksum, qmsum, memoryagentbench, mem_alpha),
    *(perltqa, locomo, longmemeval, msc, locomo_plus, beam),
    *(trec, banking77, clinc150, hwu64, pubmed_rct, csabstruct),
    *(sgd, natural, synthetic, toy),
)
BUILT_IN_SOURCES: Mapping[str, Source] = {
    source.name: source for module in _MODULES for source in module.SOURCES
}
"""Of this package; ``all_sources`` adds those of plugins."""


@cache
def all_sources() -> Mapping[str, Source]:
    """Return ``BUILT_IN_SOURCES`` and the sources of plugins (group ``memalpha.sources``) by name.

    InputError if a plugin cannot be loaded, is no source, or names one that is there.
    """
    sources = dict(BUILT_IN_SOURCES)
    for entry in find_plugins("memalpha.sources").values():
        loaded = load_plugin(entry)
        for source in loaded if isinstance(loaded, list) else [loaded]:
            if not isinstance(source, Source):
                raise InputError(
                    f"the entry point {entry.name!r} gives {type(source).__name__} {source!r:.80}",
                    expected=f"{PLUGIN_GROUPS[entry.group]} at {entry.value}",
                )
            if source.name in sources:
                raise InputError(
                    f"the entry point {entry.name!r} gives a data source {source.name!r}, which "
                    "exists already",
                    expected="a name that no other source has",
                    fix="uninstall its package, or rename the source",
                )
            sources[source.name] = source
    return sources


def get_source(name: str) -> Source:
    """Return a source by name; InputError, which lists all names, if there is no such source."""
    sources = all_sources()
    if name not in sources:
        raise InputError(
            f"the data source {name!r} is unknown",
            expected=f"one of {', '.join(sorted(sources))}",
        )
    return sources[name]


@dataclass(slots=True)
class Manifest:
    """Contents and origin of a prepared folder; docs/reference/data-format.md has the fields."""

    source: str
    input: str | None
    token_counter: str
    seed: int
    options: JsonObject
    checked_against: list[str]
    instances: int = 0
    chunks: int = 0
    questions: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TOKENS, 0))
    asked: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    sha256: str = ""
    version: str = __version__

    def add(self, instance: Instance, count: TokenCounter) -> None:
        """Count an instance."""
        lengths = [count(chunk.text) for chunk in instance.chunks]
        self.instances += 1
        self.chunks += len(lengths)
        self.questions += len(instance.questions)
        self.tokens["chunks"] += sum(lengths)
        self.tokens["questions"] += sum(count(question.text) for question in instance.questions)
        self.tokens["longest_chunk"] = max(self.tokens["longest_chunk"], *lengths)


def read_manifest(folder: str | Path) -> Manifest:
    """Read a prepared folder's manifest; InputError if it is missing or invalid."""
    path = Path(folder) / MANIFEST_NAME
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(
            f"{folder} has no {MANIFEST_NAME}",
            expected="a prepared folder",
            fix="make one with memalpha prepare",
        ) from error
    except (ValueError, TypeError) as error:
        raise SchemaError(
            f"{path} is not a manifest: {error}", expected="an object as memalpha prepare writes it"
        ) from error


def iter_prepared(folder: str | Path) -> Iterator[Instance]:
    """Yield the instances of a prepared folder; InputError if it is missing or not what its
    manifest says.
    """
    manifest = read_manifest(folder)
    path = Path(folder) / PARQUET_NAME
    sha256 = (
        f"sha256 {file_sha256(path)}" if path.is_file() else "no sha256, since the file is missing"
    )
    expected = f"sha256 {manifest.sha256}"
    if sha256 != expected:
        raise InputError(
            f"{path} does not match its manifest: it has {sha256}",
            expected=expected,
            fix="prepare the folder again with --overwrite",
        )
    return iter_parquet(path)


def load_data(names: str, options: JsonMapping | None = None, seed: int = 0) -> list[Instance]:
    """Return the instances of one or more sources.

    Args:
        names: Prepared folders, files of instances or generated sources, separated by commas.
        options: Options of the first source, if it is generated.
        seed: The seed of generated sources.

    Returns:
        The instances of all sources, in order.

    Raises:
        InputError: A source does not exist or cannot be read, or an id occurs twice.
    """
    instances: list[Instance] = []
    for name in source_names(names):
        instances += load_one(name, None if instances else options, seed)
    for id, number in Counter(instance.id for instance in instances).items():
        if number > 1:
            raise InputError(
                f"two instances of {names!r} are called {id!r}",
                expected="ids that are unique over all data",
                fix="prepare one of the sets with another seed",
            )
    return instances


def source_names(names: str) -> list[str]:
    """Split names separated by commas; an existing path is one name."""
    return [names] if Path(names).exists() else [name.strip() for name in names.split(",")]


def load_one(
    name_or_path: str, options: JsonMapping | None = None, seed: int = 0
) -> list[Instance]:
    """Return the instances of a prepared folder, an instance file, or a generated source;
    InputError if none or wrong.
    """
    path = Path(name_or_path)
    if not path.exists():
        generated = {name: each for name, each in all_sources().items() if not each.needs_input}
        if name_or_path in generated:
            values = dict(options or {})
            given = values.pop("seed", seed)
            if not str(given).isdecimal():
                raise InputError(
                    f"the seed of source {name_or_path!r} is {given!r:.60}",
                    expected="an integer, 0 or more",
                )
            seed = int(given)
            return list(Tally().instances(generated[name_or_path].load(None, values, seed)))
        listed = ", ".join(generated)
        raise InputError(
            f"there are no data at {name_or_path!r}",
            expected=f"a prepared folder, an instances.jsonl, or a generated source ({listed})",
            fix="make a prepared folder with memalpha prepare",
        )
    if options:
        raise InputError(
            f"the options {dict(options)} are given for {name_or_path!r}, which is not generated",
            expected="options only for generated sources",
        )
    if (path / MANIFEST_NAME).is_file():
        return list(iter_prepared(path))
    return list(iter_parquet(path)) if path.suffix == ".parquet" else read_instances(path)


def prepare(
    name: str,
    input: str | Path | None,
    output: str | Path,
    *,
    seed: int = 0,
    options: JsonMapping | None = None,
    count_tokens: TokenCounter = count_words_and_signs,
    token_counter: str = "words",
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    check_against: Sequence[str | Path] = (),
    drop_leaks: bool = False,
) -> Manifest:
    """Make a folder of instances from one of ``all_sources`` and return its manifest; InputError if
    that cannot be.

    ``input`` is a file or Hub name, None for generated data. LeakError lists what repeats questions
    or contexts of the folders ``check_against``; with ``drop_leaks`` it is skipped.
    ``token_counter`` names ``count_tokens`` in the manifest.
    """
    source = get_source(name)
    folder = Path(output).resolve()
    _check_output(folder, overwrite=overwrite)
    parsed = source.parse(options)
    manifest = Manifest(
        source.name,
        # a folder is machine-specific
        None if input is None else Path(input).name if Path(input).exists() else str(input),
        token_counter,
        seed,
        json.loads(json.dumps(asdict(parsed))),  # tuples as lists, as in the file
        [Path(other).name for other in check_against],
    )
    leaks = LeakCheck()
    for other in check_against:
        examples = read_manifest(other).options.get("examples")
        leaks.learn(iter_prepared(other), own_examples=not examples)
    count = lru_cache(maxsize=256)(count_tokens)  # the loader and the manifest count the same chunk
    tally = Tally()

    def instances() -> Iterator[Instance]:
        for instance in tally.instances(source.load(input, options, seed, count)):
            found = leaks.check(instance, own_examples=not manifest.options.get("examples"))
            left = without(instance, found) if drop_leaks else instance
            questions = len(left.questions) if left else 0
            tally.skipped["repeats a checked set"] += len(instance.questions) - questions
            if left is not None:
                yield left
                manifest.add(left, count)
                if progress is not None:
                    progress(manifest.instances)

    with replacing_folder(folder) as partial:
        write_parquet(partial / PARQUET_NAME, instances())
        if not manifest.instances:
            raise _nothing_made(name, input, tally)
        if leaks.leaks and not drop_leaks:
            raise LeakError(f"{name} from {input}" if input else name, leaks.leaks)
        manifest.asked = manifest.questions + tally.skipped.total()
        manifest.skipped = dict(sorted((+tally.skipped).items()))
        manifest.notes = dict(sorted((+tally.notes).items()))
        manifest.problems = tally.problems
        manifest.sha256 = file_sha256(partial / PARQUET_NAME)
        text = json.dumps(asdict(manifest), ensure_ascii=False, indent=2) + "\n"
        # file names may hold surrogates
        (partial / MANIFEST_NAME).write_text(text, encoding="utf-8", errors="replace")
    return manifest


def _check_output(folder: Path, *, overwrite: bool) -> None:
    names = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    ours = overwrite and names <= {PARQUET_NAME, MANIFEST_NAME}
    if folder.is_file() or (names and not ours):
        raise InputError(
            f"the output folder {folder} exists and holds {', '.join(sorted(names)[:5])}",
            expected="a new folder, or with --overwrite one that an earlier call made",
        )


def _nothing_made(name: str, input: str | Path | None, tally: Tally) -> InputError:
    reasons = [f"{number} {reason}" for reason, number in (+tally.skipped).most_common()]
    problem = f"; the first problem: {tally.problems[0]}" if tally.problems else ""
    made = f"source {name!r} made no instance{f' of {input}' if input else ''}"
    what = f"{made}: {', '.join(reasons) or 'no question found'}{problem}"
    return InputError(what, expected="at least one question that can be kept")
