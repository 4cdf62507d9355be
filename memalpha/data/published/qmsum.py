"""QMSum: a meeting is an instance, with its queries."""

from memalpha.data.chunks import Session, Turn, dialogue_chunks
from memalpha.data.published.shared import SummaryOptions, summary_question
from memalpha.data.rows import Row
from memalpha.data.source import Draft, SkippedItem, Source, by_row
from memalpha.types import Question, TokenCounter


def _qmsum(row: Row, options: SummaryOptions, count: TokenCounter) -> Draft:
    turns = [
        Turn(turn["speaker"].scalar(), turn["content"].string(), str(number))
        for number, turn in enumerate(row["meeting_transcripts"].items())
    ]
    dialogue = dialogue_chunks([Session(turns, "Meeting")], options.chunk_tokens, count)

    def question(item: tuple[str, Row]) -> Question | SkippedItem:
        kind, query = item
        spans = [span.pair() for span in query["relevant_text_span"].items(needed=False)]
        keys = {
            str(turn)
            for first, last in spans
            for turn in range(max(first.integer(), 0), min(last.integer() + 1, len(turns)))
        }
        text = query["query"].text()
        answers = query["answer"].answers()
        return summary_question(text, answers, kind, options.metric, dialogue.evidence(keys))

    queries = [
        (kind, query)
        for kind in ("general", "specific")
        for query in row[f"{kind}_query_list"].items(needed=False)
    ]
    name = row["meeting_id"].scalar() or f"qmsum {row.where}"
    return Draft(name, "qmsum", dialogue.chunks).ask(queries, question)


SOURCES = [
    Source(
        "qmsum",
        "QMSum meetings with queries, original JSON Lines",
        by_row(_qmsum),
        SummaryOptions,
    ),
]
