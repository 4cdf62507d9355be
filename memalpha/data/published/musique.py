"""MuSiQue: the supporting paragraphs of consecutive questions in chunks."""

from memalpha.data.published.multihop import MultihopOptions, multihop
from memalpha.data.rows import Row
from memalpha.data.source import Source


def _musique_articles(row: Row) -> dict[str, bool]:
    return {
        f"{each['title'].scalar()}\n{each['paragraph_text'].text()}".strip(): (
            each["is_supporting"].data is True
        )
        for each in row["paragraphs"].items()
    }


SOURCES = [
    Source(
        "musique",
        "MuSiQue, original JSON Lines: supporting paragraphs in chunks",
        multihop("musique", _musique_articles),
        MultihopOptions,
    ),
]
