"""Write what pytest recorded of slow tests (scripts/test.sh --slow) into docs/slow-tests.md.

python scripts/slow_tests.py RECORD.xml
"""

import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).parents[1] / "docs" / "slow-tests.md"
HEAD = """# The slow tests

This page records when each slow test file last ran, at which commit, and with which result.

`bash scripts/test.sh --slow` runs every test that is marked `slow`, and writes this page. It first
installs DeepSpeed and vLLM's CPU build into environments of their own (`.venv-deepspeed` and
`.venv-vllm`, about 4 GB). Arguments after `--slow` go to pytest. If you name one file there, only
its row is renewed. Tests that take seconds are not listed. They run with `bash scripts/test.sh`,
and in continuous integration.

| test file | date | commit | passed | failed | skipped | time, s | why skipped |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
OUTCOMES = {"skipped": "skipped", "failure": "failed", "error": "failed"}


def rows_of(record, *about):
    """Return a row of the table for each test file of a record in JUnit's form."""
    counts, seconds, reasons = defaultdict(Counter), Counter(), defaultdict(set)
    for case in record.iter("testcase"):
        name = "tests/" + case.get("classname").removeprefix("tests.").replace(".", "/") + ".py"
        seconds[name] += float(case.get("time"))
        outcome = "passed"
        for element in case:
            outcome = OUTCOMES.get(element.tag, outcome)
            if element.tag == "skipped":
                reasons[name].add(element.get("message", ""))
        counts[name][outcome] += 1
    rows = {}
    for name, count in counts.items():
        numbers = [str(count[outcome]) for outcome in ("passed", "failed", "skipped")]
        why = "; ".join(sorted(reasons[name]))
        cells = [f"`{name}`", *about, *numbers, f"{seconds[name]:.0f}", why]
        rows[name] = "| " + " | ".join(cells) + " |"
    return rows


def not_run(root):
    """Return a row for each test file that marks tests as slow."""
    files = [path for path in root.glob("tests/**/test_*.py") if "mark.slow" in path.read_text()]
    names = [path.relative_to(root).as_posix() for path in files]
    return {name: f"| `{name}` | not run yet | | | | | | |" for name in names}


def main():
    """Read the record that the first argument names and renew the rows of its files."""
    git = ["git", "-C", str(PAGE.parent), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    today = datetime.now(UTC).date().isoformat()
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    rows = not_run(PAGE.parents[1])
    rows |= {line.split("`")[1]: line for line in lines if line.startswith("| `tests/")}
    rows |= rows_of(ElementTree.parse(sys.argv[1]), today, f"`{commit}`")
    there = [rows[name] for name in sorted(rows) if (PAGE.parents[1] / name).exists()]
    PAGE.write_text(HEAD + "\n".join(there) + "\n")
    print(f"[test] wrote {PAGE}")


if __name__ == "__main__":
    main()
