"""One value of one file of a folder, changed at random."""

import json
import random
from pathlib import Path
from typing import Any

import yaml

VALUES = [None, "x", "", [], ["x"], {}, {"x": 1}, 0, 1, -5, 2.5, 1e300, 10**40, True]
NUMBERS = ["NaN", "Infinity"]
MISSING = object()


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a value, and its own."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    if isinstance(value, list):
        items = list(enumerate(value))
    return [path, *(place for key, item in items for place in places_of(item, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of a value with another one at a place, or none there."""
    if not path:
        return {} if new is MISSING else new
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    if not rest and new is MISSING:
        del copy[key]
    else:
        copy[key] = changed(copy[key], tuple(rest), new)
    return copy


def change_one(folder: Path, rng: random.Random) -> str:
    """Change one value of one file; say which."""
    files = [path for path in folder.rglob("*") if path.suffix in (".json", ".jsonl", ".yaml")]
    file = rng.choice(sorted(files))
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines() if file.suffix == ".jsonl" else [text]
    number = rng.randrange(len(lines))
    value = yaml.safe_load(text) if file.suffix == ".yaml" else json.loads(lines[number])
    # short paths are as likely as long ones
    places = places_of(value)
    depth = rng.choice(sorted({len(place) for place in places}))
    place = rng.choice([each for each in places if len(each) == depth])
    new = rng.choice([MISSING, *VALUES, *map(float, NUMBERS)])
    data = changed(value, place, new)
    lines[number] = yaml.safe_dump(data) if file.suffix == ".yaml" else json.dumps(data)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    shown = "missing" if new is MISSING else repr(new)
    return f"{file.relative_to(folder)}:{number + 1} {'.'.join(map(str, place))} is {shown}"
