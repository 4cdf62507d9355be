"""The check of the pages: each fault that it is for, planted in a page that is otherwise plain."""

import pytest

from scripts import check_docs

PLAIN = """# A page

You import a file, and the store keeps its lines ([guide](other.md)). A model of 0.5B answers 64 % of
the questions, 2.6 points more (95 % interval 0.9 to 4.3), at a cosine of at least 0.27.

The table has shares.

| system | right |
| --- | --- |
| search | .545 |

| option | default | why |
| --- | --- | --- |
| `beta` | 0.1 | It keeps the memory short. |

```bash
memalpha ask now --time 2024-05-01   # .5
```
"""
FAULTS = {
    "a date": ("You import", "Since 2026-11-30 you import", "history"),
    "a word of history": ("and the store keeps", "and the store now keeps", "history"),
    "a comparison with the past": ("its lines (", "its lines as before (", "history"),
    "a bare decimal": ("64 %", ".640", "a decimal"),
    "a decimal without a noun": ("64 %", "0.64", "a decimal"),
    "a long sentence": ("and the store", "and " * 30 + "the store", "a sentence of"),
    "a column without a unit": ("The table has shares.", "The table.", "a column of numbers"),
    "a link to nothing": ("other.md", "nothing.md", "a link to nothing"),
    "a path that is not there": ("a file,", "`configs/nothing.yaml`,", "a path that is not there"),
}


def problems(folder, text, name="docs/page.md"):
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs" / "other.md").write_text("# Other")
    (folder / name).write_text(text)
    return [problem.what for problem in check_docs.check_page(folder / name, folder)]


def test_a_plain_page_has_no_problem(tmp_path):
    assert problems(tmp_path, PLAIN) == []


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_seen(name, tmp_path):
    old, new, what = FAULTS[name]
    assert old in PLAIN
    (problem,) = problems(tmp_path, PLAIN.replace(old, new, 1))
    assert problem.startswith(what)


def test_a_record_has_dates_and_no_bare_decimals(tmp_path):
    text = "On 2026-11-30 it answered 64 % as before. It has .640 now.\n"
    (problem,) = problems(tmp_path, text, "docs/results.md")
    assert problem.startswith("a decimal")
