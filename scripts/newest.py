"""The newest versions of all dependencies: what scripts/test.sh --newest installs and records.

python scripts/newest.py requirements           the dependencies, without upper limits
python scripts/newest.py record RESULT.xml ...  writes docs/newest.md about a run of pytest, whose
                                                arguments follow the name of its result
"""

import subprocess
import sys
import tomllib
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "newest.md"
HEAD = """# The newest versions

This page records the last run of the tests with the newest version of each dependency.

`bash scripts/test.sh --newest` installs them into `.venv-newest`, over the packages of `.venv`, and
writes this page. It ignores the versions of `constraints.txt` and the upper limits of
`pyproject.toml`, except for torch, which stays as pinned: a newer one brings gigabytes for GPUs.
"""


def requirements():
    """Return what the package and its tests need, by name, each without an upper limit."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed, lines = {}, [*project["dependencies"], *extras["dev"]]
    while lines:
        requirement = Requirement(lines.pop(0))
        if requirement.name == "memalpha":
            lines += [line for extra in sorted(requirement.extras) for line in extras[extra]]
            continue
        least = [str(each) for each in requirement.specifier if each.operator in (">=", ">", "!=")]
        requirement.specifier = SpecifierSet(",".join(least))
        needed[canonicalize_name(requirement.name)] = requirement
    return needed


def pins():
    """Return the versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): pinned for name, pinned in pairs}


def versions():
    """Return (name, pinned, tried) of each dependency of this machine, those that differ first."""
    pinned = pins()
    here = [
        name
        for name, each in requirements().items()
        if each.marker is None or each.marker.evaluate()
    ]
    rows = [(name, pinned[name], version(name).partition("+")[0]) for name in here]
    return sorted(rows, key=lambda row: (row[1] == row[2], row[0]))


def results(record):
    """Return the number of tests by outcome, and the names of those that failed."""
    counts, failed = Counter(), []
    for case in record.iter("testcase"):
        tags = {element.tag for element in case}
        outcome = "failed" if tags & {"failure", "error"} else "passed"
        counts["skipped" if "skipped" in tags else outcome] += 1
        if outcome == "failed":
            place = case.get("classname").replace(".", "/")
            failed.append(f"{place}.py::{case.get('name')}")
    return counts, failed


def page_of(record, arguments, commit, day):
    """Return the page about a record of pytest in JUnit's form."""
    counts, failed = results(record)
    which = f"with the arguments `{' '.join(arguments)}`" if arguments else "all but the slow ones"
    python = ".".join(map(str, sys.version_info[:3]))
    lines = [
        f"Run on {day} at commit `{commit}`, with Python {python}. Tests: {which}.",
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} were skipped.",
        "",
        *(f"* failed: `{name}`" for name in failed),
        *([""] if failed else []),
        "| dependency | pinned version | version that was tried |",
        "| --- | --- | --- |",
    ]
    for name, pinned, tried in versions():
        tried = tried if tried == pinned else f"**{tried}**"
        lines.append(f"| {name} | {pinned} | {tried} |")
    return HEAD + "\n" + "\n".join(lines) + "\n"


def main():
    verb, *arguments = sys.argv[1:]
    if verb == "requirements":
        print(*requirements().values(), sep="\n")
        return
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    day = datetime.now(UTC).date().isoformat()
    record = ElementTree.parse(arguments[0])
    PAGE.write_text(page_of(record, arguments[1:], commit, day), encoding="utf-8")
    for name, pinned, tried in versions():
        print(f"[newest] {name} {pinned}" + (f" -> {tried}" if pinned != tried else ""))
    print(f"[newest] wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
