"""MemoryAgentBench (arXiv 2507.05257): rows as on the Hub, whose lists may be JSON text.

The source that a row names says how it is scored; so it does in Mem-alpha's data.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from memalpha.data.published.shared import keyphrases, question_on
from memalpha.data.published.titles import nearest, read_titles, titles_in
from memalpha.data.rows import Row
from memalpha.data.source import Draft, SkippedItem, Source, TextOptions, by_row
from memalpha.qa.metrics import golden_answers
from memalpha.types import Answer, Chunk, Question, TokenCounter
from memalpha.units import cut_text

_SIZE = re.compile(r"_[0-9]+[A-Za-z]*.*$|\*$")
_RECOMMENDS = "recsys"  # how the sources begin whose answers are numbers of a table of titles
METRIC_OF_PREFIX: Mapping[str, str] = {
    "ruler_qa": "substring",
    "longmemeval": "judge",
    "ruler_niah": "keywords",
    "eventqa": "substring_all",
    "icl_": "boxed",
    "recsys": "recall_at_5",
    "infbench_sum": "keywords",
    "detective": "exact_match",
    "factconsolidation": "substring",
    "squad": "substring",
    "hotpotqa": "substring",
    "perltqa": "parts",
    "lme_train": "judge",
    "pubmed-rct": "boxed",
    "booksum": "keywords",
    "ttl_train": "boxed",
}
"""Metric by the beginning of a row's source: MemoryAgentBench's, which end with a size
(``eventqa_65536``), and Mem-alpha's."""


@dataclass(frozen=True, slots=True)
class MemoryAgentBenchOptions(TextOptions):
    """How MemoryAgentBench becomes instances.

    Attributes:
        split: This split of the data set on the Hub is read.
        entities: This is the path of the set's entity2id.json, without which its recommendations
            (recsys) cannot be scored.
    """

    split: str = "Accurate_Retrieval"
    entities: str = ""


def metric_of(source: str) -> str:
    """Return the metric of a row's source, "" if it is unknown."""
    metrics = (metric for prefix, metric in METRIC_OF_PREFIX.items() if source.startswith(prefix))
    return next(metrics, "")


def recommends(source: str) -> bool:
    """Whether the answers of a row's source are numbers of a table of titles."""
    return source.startswith(_RECOMMENDS)


def scored_answers(row: Row, metric: str) -> tuple[str, ...]:
    """Return a row's accepted answers; SchemaError if the metric cannot score them."""
    golds = row.answers()
    if metric == "boxed" and not all(re.fullmatch(r"[+-]?[0-9]{1,18}", gold) for gold in golds):
        raise row.unfit("a label that is an integer, for metric 'boxed'")
    return golds


def skip_unscored(source: str, questions: int) -> Draft:
    """Return a draft without chunks whose questions are skipped, since nothing scores them."""
    of_titles = recommends(source)
    option = "'entities' with the set's entity2id.json" if of_titles else "'metric'"
    problem = f"source {source!r} cannot be scored; give option {option}"
    reason = "recommendations without entities" if of_titles else "unknown source"
    return Draft(source, source, (), [SkippedItem(reason, questions, problem)])


def _memoryagentbench(row: Row, options: MemoryAgentBenchOptions, count: TokenCounter) -> Draft:
    about = row["metadata"].decoded()
    source = about["source"].text()
    questions = row["questions"].decoded().items()
    answers = row["answers"].decoded().items()
    context = row["context"].text()
    keypoints = tuple(map(Row.string, about["keypoints"].items(needed=False)))
    if len(questions) != len(answers):
        raise row["answers"].unfit(f"{len(questions)} items, as many as questions")
    metric = options.metric or metric_of(source)
    if not metric or (recommends(source) and not options.entities):
        return skip_unscored(source, len(questions))
    titles = read_titles(options.entities) if recommends(source) else None

    def column(name: str) -> list[Row]:
        values = about[f"question_{name}s"]
        fits = isinstance(values.data, list) and len(values.data) == len(questions)
        return values.items() if fits else [Row(row.where, None)] * len(questions)

    def question(item: tuple[Row, ...]) -> Question | SkippedItem:
        asked, golden, kind, id, date = item
        text = question_on(date.scalar(), asked.text())
        golds = scored_answers(golden, metric)
        if metric == "keywords" and golds and source.startswith("infbench_sum"):
            golds = keyphrases("\n".join(keypoints or golds))
        if not golds:
            return Question(text)  # is left out
        if titles is not None:
            if not titles.keys() >= set(golds):
                return SkippedItem("answer that is not in entities")
            golds = tuple(titles[number] for number in golds)
        kind_name = kind.scalar() or _SIZE.sub("", source)
        table = None if titles is None else options.entities
        return Question(text, golds, metric, kind_name, table, id=id.scalar())

    items = zip(questions, answers, *map(column, ("type", "id", "date")), strict=True)
    chunks = tuple(map(Chunk, cut_text(context, options.chunk_tokens, count)))
    return Draft(f"{source} {row.where}", source, chunks).ask(items, question)


def recall_at_5(question: Question, answer: Answer) -> float:
    """Share of the accepted titles among the first five lines of the answer. Source:
    MemoryAgentBench's recommendations.

    A line counts as the nearest title of the table that the question's ``subject`` names (see
    ``memalpha.data.published.titles``). InputError if there is no such table.
    """
    titles = [nearest(line, question.subject or "") for line in titles_in(answer.text)[:5]]
    golds = golden_answers(question)
    return sum(gold in titles for gold in golds) / len(golds)


SOURCES = [
    Source(
        "memoryagentbench",
        "MemoryAgentBench: Parquet, JSON, JSON Lines",
        by_row(_memoryagentbench),
        MemoryAgentBenchOptions,
    ),
]
