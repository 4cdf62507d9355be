#!/usr/bin/env bash
# Two stemmers that are both called Porter disagree: nltk 3.10.4's PorterStemmer() is not Porter's published algorithm unless it
# is given mode="ORIGINAL_ALGORITHM"; snowballstemmer 3.1.1's "porter" (and SQLite's) is. LoCoMo scores answers by F1 of nltk's
# stems. Whoever scores a memory agent with another Porter stemmer, or with the mode the name suggests, gets other numbers:
# "fly" against "flies", or "dying" against "died", is 0 instead of 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet nltk==3.10.4 snowballstemmer==3.1.1
"$work/venv/bin/python" - <<'PY'
import re
from importlib.metadata import version
from pydoc_data.topics import topics  # English prose that every Python brings

import snowballstemmer
from nltk.stem import PorterStemmer

print("nltk", version("nltk"), "snowballstemmer", version("snowballstemmer"))
stemmers = {
    "nltk": PorterStemmer().stem,
    "nltk, original": PorterStemmer(mode="ORIGINAL_ALGORITHM").stem,
    "snowball": snowballstemmer.stemmer("porter").stemWord,
}


def f1(stem, answer, gold):
    left, right = {stem(word) for word in answer.split()}, {stem(word) for word in gold.split()}
    return 2 * len(left & right) / (len(left) + len(right))


cases = [("he flies planes", "fly plane"), ("dying flowers", "flowers died"), ("two skies", "sky"), ("enjoyed", "enjoy")]
scores = {name: [round(f1(stem, *case), 3) for case in cases] for name, stem in stemmers.items()}
for name, row in scores.items():
    print(f"{name:15}", dict(zip([" / ".join(case) for case in cases], row)))
words = sorted(set(re.findall("[a-z]{3,}", " ".join(topics.values()).lower())))
others = [word for word in words if stemmers["nltk"](word) != stemmers["snowball"](word)]
print(len(others), "of", len(words), "distinct words have another stem, as", others[:8])
assert scores["nltk"] == [0.8, 1.0, 0.667, 1.0], scores["nltk"]
assert scores["snowball"] == scores["nltk, original"] == [0.4, 0.5, 0.0, 1.0], scores
assert len(others) > 20
PY
