"""Instances of a folder, a file or a source; a source prepared to a folder, and the leak check.

A prepared folder is ``instances.parquet`` and ``manifest.json``. It is written under a temporary
name and renamed last; instances stream. The same source, input, options, seed and token counter
give the same bytes.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from memalpha import __version__
from memalpha.data import natural, synthetic, toy
from memalpha.data.chunks import count_words_and_signs, space_signs
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
from memalpha.data.published.shared import as_asked
from memalpha.data.rows import PARQUET_NAME, iter_parquet, read_instances, write_parquet
from memalpha.data.source import Source, Tally
from memalpha.errors import InputError, SchemaError, from_extra
from memalpha.files import file_sha256, replacing_folder
from memalpha.plugins import PLUGIN_GROUPS, find_plugins, load_plugin
from memalpha.qa.metrics import LABEL_METRICS
from memalpha.types import Instance, JsonMapping, JsonObject, Question, TokenCounter

# ------------------------------------------------------------------------------------------------
# leak check
# Finds questions or contexts that a data set shares with another one, exactly or nearly;
# docs/data.md has the rules. Texts are compared as words (NFKC, case-folded, no punctuation, no
# leading ``Word:``; in scripts without spaces, signs): questions line by line, without lines our
# loaders add; contexts by passage (split at blank lines) and word run. Nearly equal: MinHash
# estimate of the Jaccard similarity of four-letter pieces of questions, or three-word pieces of
# passages.

# shortest question line compared without its answer; shortest passage compared at all
MIN_QUESTION_WORDS = 4
MIN_PASSAGE_WORDS = 12  # shortest passage compared in every chunk, and for near equality
# words of a run: learned runs do not overlap, checked runs start at every word; common formulas are
# shorter
RUN_WORDS = 50
THRESHOLD = 0.7  # Jaccard similarity of nearly equal texts
_PERMUTATIONS = 128
_LABEL = re.compile(r"^\s*\w+:\s+")
_SAYS_NOTHING = frozenset({"yes", "no", "none", "nothing", "maybe", "true", "false", "unknown", ""})
_SHOWN = 50


class Leak(NamedTuple):
    """A repeated ``question`` or ``context`` (``near``: nearly equal only); ``question`` is its
    index, None for a chunk.
    """

    kind: str
    where: str
    text: str
    near: bool
    question: int | None = None

    def __str__(self) -> str:
        how = "near-duplicate" if self.near else "same"
        return f"{how} {self.kind}, {self.where}: {self.text:.80}"


class LeakError(InputError):
    """Data repeat questions or contexts of another set; ``leaks`` holds all of them."""

    def __init__(self, what: str, leaks: list[Leak]) -> None:
        self.leaks = leaks
        listed = [*map(str, leaks[:_SHOWN]), *["and more"][: len(leaks) > _SHOWN]]
        repeats = f"{what} repeats {len(leaks)} questions or contexts of the sets it is checked"
        fix = "prepare another part of the data, or leave out what repeats (--drop-leaks)"
        super().__init__("\n    ".join([f"{repeats} against:", *listed]), fix=fix)


class LeakCheck:
    """Learns one or more sets, then finds what another set repeats; memory grows only with the
    learned sets.
    """

    def __init__(self) -> None:
        self.leaks: list[Leak] = []
        self._contexts: set[int] = set()  # hashes of (what, text): lines, runs, passages
        self._answers: dict[str, frozenset[str] | None] = {}  # of a question's line; None: a form
        self._first_asked: dict[str, str] = {}  # the instance of a question's line
        self._label_lines: set[str] = set()
        self._near_questions = _NearIndex(4, "")
        self._near_passages = _NearIndex(3, " ")

    def learn(self, instances: Iterable[Instance], *, own_examples: bool = True) -> None:
        """Add the questions and contexts of a set; ``own_examples`` = False if its labelled
        examples come from another file.
        """
        for instance in instances:
            labelled = _asks_for_labels(instance)
            for chunk in instance.chunks:
                lines = _lines(chunk.text, short=labelled) if own_examples else ()
                runs = () if labelled else _runs(chunk.text, RUN_WORDS)
                self._contexts |= {hash(("line", line)) for line in lines}
                self._contexts |= {hash(("run", run)) for run in runs}
                for passage in _passages(chunk.text, short=not labelled):
                    key = hash(("passage", passage))
                    if key not in self._contexts and _length(passage) >= MIN_PASSAGE_WORDS:
                        self._near_passages.add(passage)
                    self._contexts.add(key)
            for question in instance.questions:
                self._learn_question(instance.id, question)

    def _learn_question(self, instance: str, question: Question) -> None:
        text = as_asked(question.text)
        answers, telling = _answers(question)
        labelled = question.metric in LABEL_METRICS
        for line in _lines(text, short=True):
            if labelled:
                self._label_lines.add(line)
            known = self._answers.get(line, answers)
            elsewhere = self._first_asked.setdefault(line, instance) != instance
            # Label numbers differ between instances, so only one instance can show that a label
            # line is a form.
            form = known is None or (known.isdisjoint(answers) and not (labelled and elsewhere))
            self._answers[line] = None if form else (known or frozenset()) | answers
        words = " ".join(_words(text))
        if not labelled and telling and _length(words) >= MIN_QUESTION_WORDS:
            self._near_questions.add(words, telling)

    def check(self, instance: Instance, *, own_examples: bool = True) -> list[Leak]:
        """Return what an instance repeats and add it to ``leaks``; arguments as of ``learn``."""
        found: list[Leak] = []
        if not self._answers and not self._contexts:
            return found
        labelled = _asks_for_labels(instance)
        for index, chunk in enumerate(instance.chunks):
            where = f"instance {instance.id!r} chunk {index}"
            lines = _lines(chunk.text, short=labelled) if own_examples else ()
            found += [
                Leak("question", where, line, near=False)
                for line in lines
                if line in self._label_lines and self._answers[line] is not None
            ]
            found += self._repeated_context(chunk.text, where, labelled=labelled)
        for index, question in enumerate(instance.questions):
            where = f"instance {instance.id!r} question {question.id!r}"
            leak = self._repeated_question(question, where)
            if leak is not None:
                found.append(leak._replace(question=index))
        self.leaks += found
        return found

    def _repeated_context(self, text: str, where: str, *, labelled: bool) -> list[Leak]:
        found = []
        for passage in _passages(text, short=not labelled):
            same = hash(("passage", passage)) in self._contexts
            long = _length(passage) >= MIN_PASSAGE_WORDS
            if same or (long and self._near_passages.has(passage)):
                found.append(Leak("context", where, passage, near=not same))
        runs = () if labelled or found else _runs(text, 1)
        again = next((run for run in runs if hash(("run", run)) in self._contexts), None)
        return found if again is None else [Leak("context", where, again, near=False)]

    def _repeated_question(self, question: Question, where: str) -> Leak | None:
        text = as_asked(question.text)
        _, telling = _answers(question)
        labelled = question.metric in LABEL_METRICS
        for line in _lines(text, short=True):
            known = self._answers.get(line) or frozenset()
            enough = labelled or _length(line) >= MIN_QUESTION_WORDS or known & telling
            shown = labelled and hash(("line", line)) in self._contexts
            if (known and enough) or shown:
                return Leak("question", where, line, near=False)
        words = " ".join(_words(text))
        form = any(self._answers.get(line, telling) is None for line in _lines(text))
        if form or not telling or labelled or _length(words) < MIN_QUESTION_WORDS:
            return None
        near = self._near_questions.has(words, telling)
        return Leak("question", where, words, near=True) if near else None


def without(instance: Instance, leaks: Sequence[Leak]) -> Instance | None:
    """Return an instance without its leaking questions; None if a chunk leaks or no question is
    left.
    """
    leaking = {leak.question for leak in leaks}
    numbered = enumerate(instance.questions)
    questions = tuple(question for index, question in numbered if index not in leaking)
    lost = None in leaking or (leaks and not questions)
    return None if lost else replace(instance, questions=questions)


def _asks_for_labels(instance: Instance) -> bool:
    return any(question.metric in LABEL_METRICS for question in instance.questions)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", space_signs(unicodedata.normalize("NFKC", text).casefold()))


def _length(words: str) -> int:
    return words.count(" ") + 1


def _without_labels(text: str) -> list[str]:
    """Return the words of each line, joined, without a label at its beginning."""
    return [" ".join(_words(_LABEL.sub("", line))) for line in text.split("\n")]


def _lines(text: str, *, short: bool = False) -> Iterator[str]:
    for words in _without_labels(text):
        if _length(words) >= MIN_QUESTION_WORDS or (short and words and not words.isdigit()):
            yield words


def _runs(text: str, step: int) -> Iterator[str]:
    words = " ".join(_without_labels(text)).split()
    for start in range(0, len(words) - RUN_WORDS + 1, step):
        yield " ".join(words[start : start + RUN_WORDS])


def _passages(text: str, *, short: bool) -> list[str]:
    blocks = re.split(r"\n\s*\n", text)
    passages = [" ".join(filter(None, _without_labels(block))) for block in blocks]
    long = [passage for passage in passages if _length(passage) >= MIN_PASSAGE_WORDS]
    least = MIN_QUESTION_WORDS if short and not long else MIN_PASSAGE_WORDS
    return [passage for passage in passages if _length(passage) >= least]


def _answers(question: Question) -> tuple[frozenset[str], frozenset[str]]:
    """Return the accepted answers, and those that tell questions apart."""
    answers = frozenset(" ".join(_words(answer)) for answer in question.answers)
    numbers = {answer for answer in answers if answer.isdigit() and len(answer) < 3}
    return answers, answers - _SAYS_NOTHING - numbers


class _NearIndex:
    """MinHash index of texts by their pieces of ``size`` letters or words; each can need a shared
    answer (None = no).
    """

    def __init__(self, size: int, separator: str) -> None:
        self._size = size
        self._separator = separator
        self._texts: list[tuple[Any, frozenset[str] | None]] = []  # signature and answers

    @cached_property
    def _index(self) -> Any:
        with from_extra("data"):
            from datasketch import MinHashLSH  # a slow import

        # Weights that avoid misses; the estimate in ``has`` removes false candidates.
        return MinHashLSH(threshold=THRESHOLD, num_perm=_PERMUTATIONS, weights=(0.1, 0.9))

    def add(self, text: str, shared: frozenset[str] | None = None) -> None:
        signature = self._signature(text)
        self._index.insert(len(self._texts), signature)
        self._texts.append((signature, shared))

    def has(self, text: str, shared: frozenset[str] = frozenset()) -> bool:
        if not self._texts:
            return False
        signature = self._signature(text)
        candidates = [self._texts[number] for number in self._index.query(signature)]
        near = [needed for other, needed in candidates if other.jaccard(signature) >= THRESHOLD]
        return any(needed is None or needed & shared for needed in near)

    def _signature(self, text: str) -> Any:
        with from_extra("data"):
            from datasketch import LeanMinHash, MinHash

        units = text.split(self._separator) if self._separator else list(text)
        starts = range(max(1, len(units) - self._size + 1))
        pieces = (self._separator.join(units[i : i + self._size]).encode() for i in starts)
        signature = MinHash(num_perm=_PERMUTATIONS, seed=1)
        signature.update_batch(list(pieces))
        return LeanMinHash(signature)


# ------------------------------------------------------------------------------------------------
# loading

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
                    f"the entry point {entry.name!r} gives a second data source {source.name!r}",
                    expected="a name that no other source has",
                    fix="uninstall its package, or rename the source",
                )
            sources[source.name] = source
    return sources


def get_source(name: str) -> Source:
    """Return a source; InputError lists all names if there is none."""
    sources = all_sources()
    if name not in sources:
        raise InputError(
            f"unknown data source {name!r}",
            expected=f"one of {', '.join(sorted(sources))}",
        )
    return sources[name]


@dataclass(slots=True)
class Manifest:
    """Contents and origin of a prepared folder; data/README.md describes the fields."""

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
            fix="make one with: memalpha prepare",
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
    sha256 = f"sha256 {file_sha256(path)}" if path.is_file() else "no sha256: it is not there"
    expected = f"sha256 {manifest.sha256}"
    if sha256 != expected:
        raise InputError(
            f"{path} has {sha256}",
            expected=expected,
            fix="prepare it again with overwrite",
        )
    return iter_parquet(path)


def load_data(names: str, options: JsonMapping | None = None, seed: int = 0) -> list[Instance]:
    """Return the instances of one or more sources (``options``: of the first); InputError as
    ``load_one``, or if ids repeat.
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
                    f"seed of source {name_or_path!r} is {given!r:.60}",
                    expected="an integer, 0 or more",
                )
            seed = int(given)
            return list(Tally().instances(generated[name_or_path].load(None, values, seed)))
        listed = ", ".join(generated)
        raise InputError(
            f"no data at {name_or_path!r}",
            expected=f"a prepared folder, an instances.jsonl, or a generated source ({listed})",
            fix="make it with memalpha prepare",
        )
    if options:
        raise InputError(
            f"options {dict(options)} are given for {name_or_path!r}",
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
            f"output {folder} exists and holds {', '.join(sorted(names)[:5])}",
            expected="a folder that does not exist yet, or one that an earlier call made, "
            "with --overwrite",
        )


def _nothing_made(name: str, input: str | Path | None, tally: Tally) -> InputError:
    reasons = [f"{number} {reason}" for reason, number in (+tally.skipped).most_common()]
    problem = f"; the first problem: {tally.problems[0]}" if tally.problems else ""
    made = f"source {name!r} made no instance{f' of {input}' if input else ''}"
    what = f"{made}: {', '.join(reasons) or 'no question found'}{problem}"
    return InputError(what, expected="at least one question that can be kept")
