"""HotpotQA: the evidence articles of consecutive questions in chunks."""

from memalpha.data.published.multihop import MultihopOptions, multihop
from memalpha.data.rows import Row
from memalpha.data.source import Source


def _hotpot_articles(row: Row) -> dict[str, bool]:
    needed = {fact.pair()[0].string() for fact in row["supporting_facts"].items(needed=False)}
    articles = {}
    for title, sentences in (article.pair() for article in row["context"].items()):
        text = " ".join(sentence.string() for sentence in sentences.items())
        articles[f"{title.string()}\n{text.strip()}".strip()] = title.string() in needed
    return articles


SOURCES = [
    Source(
        "hotpotqa",
        "HotpotQA, original JSON: evidence articles in chunks",
        multihop("hotpotqa", _hotpot_articles),
        MultihopOptions,
    ),
]
