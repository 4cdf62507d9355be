"""Write docs/slow-tests.md from pytest's record of a run of scripts/test.sh --slow.

python scripts/slow_tests.py RECORD.xml
"""

import subprocess
import sys
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).parents[1] / "docs" / "slow-tests.md"
OUTCOMES = ("passed", "failed", "skipped")
HEAD = """# The slow tests

`bash scripts/test.sh --slow` runs every test that is marked `slow` and writes this page. It first
installs DeepSpeed and vLLM's CPU build into environments of their own (`.venv-deepspeed`,
`.venv-vllm`, about 4 GB). The tests that take seconds run with `bash scripts/test.sh`, as in
continuous integration, and are not listed here.
"""


def outcome_of(case):
    """Return passed, failed or skipped, and why a test was skipped."""
    for element in case:
        if element.tag == "skipped":
            return "skipped", element.get("message", "")
        if element.tag in ("failure", "error"):
            return "failed", ""
    return "passed", ""


def page_of(record, commit, date):
    """Return the text of the page for a record in JUnit's form."""
    counts, seconds, skips = defaultdict(Counter), Counter(), Counter()
    for case in record.iter("testcase"):
        name = case.get("classname").removeprefix("tests.").replace(".", "/") + ".py"
        outcome, reason = outcome_of(case)
        counts[name][outcome] += 1
        seconds[name] += float(case.get("time"))
        if reason:
            skips[name, reason] += 1
    total = sum(counts.values(), Counter())
    lines = [
        HEAD,
        f"Last run: {date}, commit `{commit}`. {total['passed']} tests passed,"
        f" {total['failed']} failed and {total['skipped']} were skipped,"
        f" in {sum(seconds.values()) / 60:.0f} minutes.\n",
        "| test file | passed | failed | skipped | time, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in sorted(counts):
        cells = [str(counts[name][outcome]) for outcome in OUTCOMES]
        lines.append(f"| `tests/{name}` | {' | '.join(cells)} | {seconds[name]:.0f} |")
    if skips:
        lines += ["", "Skipped:", ""]
        lines += [
            f"* `tests/{name}`, {number}: {reason}"
            for (name, reason), number in sorted(skips.items())
        ]
    return "\n".join(lines) + "\n"


def main():
    """Read the record that the first argument names and write the page."""
    git = ["git", "-C", str(PAGE.parent), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    record = ElementTree.parse(sys.argv[1])
    PAGE.write_text(page_of(record, commit, datetime.now(UTC).date().isoformat()))
    print(f"[test] wrote {PAGE.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
