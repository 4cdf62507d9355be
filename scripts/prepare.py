"""Prepares every data set that a file of configs/data/ names, from a folder of original files.

    python scripts/prepare.py published originals --seed 1 --only locomo

Each set is one call of ``memalpha prepare``, which is printed; ``input`` patterns are looked for at
any depth. Folders that are there are kept unless --overwrite is given; one that other options made
stops the command. Exit code 1 if a set could not be prepared; the others are.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.cli import run
from memalpha.config import find_config, read_yaml
from memalpha.data.load import get_source, read_manifest
from memalpha.errors import InputError, MemAlphaError


def seed_of(row: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """The set's seed, else that of all."""
    return int(row.get("seed", config.get("seed", 0)))


def command(
    name: str, row: Mapping[str, Any], config: Mapping[str, Any], originals: Path
) -> list[str] | None:
    """Arguments of ``memalpha prepare`` that make a set; None if its original is not there and need
    not be, else InputError."""

    def find(patterns: str | Sequence[str]) -> list[Path]:
        each = [patterns] if isinstance(patterns, str) else patterns
        found = list(
            dict.fromkeys(path for pattern in each for path in sorted(originals.rglob(pattern)))
        )
        if not found and not config.get("if_found"):
            raise InputError(
                f"no {patterns} below {originals}",
                expected="the sets' original files, see docs/reference/data-sets.md",
            )
        return found

    output = Path(config["output"])
    words = [
        "prepare",
        row["source"],
        "--output",
        str(output / name),
        "--seed",
        str(seed_of(row, config)),
    ]
    if "input" in row:
        found = find(row["input"])
        if not found:
            return None
        first, *left = dict.fromkeys(path.parent for path in found) if row.get("folder") else found
        if left:
            print(
                f"note: {name} reads {first} and leaves {', '.join(map(str, left))}",
                file=sys.stderr,
            )
        words += ["--input", str(first)]
    options = {
        key: str(value).lower() if isinstance(value, bool) else value
        for key, value in row.get("options", {}).items()
    }
    options |= {
        key: found[0] for key, patterns in row.get("files", {}).items() if (found := find(patterns))
    }
    words += [word for key, value in options.items() for word in ("--option", f"{key}={value}")]
    if "against" in row and (output / row["against"]).exists():
        words += ["--check-against", str(output / row["against"]), "--drop-leaks"]
    return words + (["--model", config["model"]] if config.get("model") else [])


def check_made(folder: Path, row: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raise InputError if a prepared folder was made with another seed or other options than the
    row's."""
    made, given, parse = (
        read_manifest(folder),
        row.get("options", {}),
        get_source(row["source"]).parse,
    )
    held, wanted = parse(made.options), parse(given)
    pairs = {key: (getattr(held, key), getattr(wanted, key)) for key in given} | {
        "seed": (made.seed, seed_of(row, config))
    }
    if other := [f"{key} {was}, not {now}" for key, (was, now) in pairs.items() if was != now]:
        raise InputError(
            f"{folder} was made with {', '.join(other)}",
            fix="add --overwrite, or --output with another folder",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", help="a file of configs/data/ by its name, or a path")
    parser.add_argument("originals", type=Path, help="folder of original files")
    parser.add_argument("--output", help="folder to make the prepared sets in")
    parser.add_argument("--seed", type=int, help="of the sets that name none (default: 0)")
    parser.add_argument("--model", help="count tokens with this model's tokenizer instead of words")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="prepare these sets or sources alone"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace folders prepared before")
    given = parser.parse_args(arguments)
    failed = made = 0
    try:
        config = read_yaml(find_config("data", given.config))
        config |= {
            name: value
            for name in ("output", "seed", "model")
            if (value := getattr(given, name)) is not None
        }
        for name, row in config["sets"].items():
            if given.only and not {name, row["source"]} & set(given.only):
                continue
            folder = Path(config["output"]) / name
            if (folder / "manifest.json").is_file() and not given.overwrite:
                check_made(folder, row, config)
                print(f"{name} is there", flush=True)
                made += 1
            elif words := command(name, row, config, given.originals):
                words += ["--overwrite"] if given.overwrite else []
                print(f"memalpha {shlex.join(words)}", flush=True)
                made += 1
                failed += bool(run(words))
        if not made:
            raise InputError(
                f"no original file of any set below {given.originals}",
                expected="files as docs/reference/data-sets.md lists them",
            )
    except MemAlphaError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
