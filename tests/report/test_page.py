from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from memalpha.errors import InputError
from memalpha.report.curves import DARK, curves_png
from memalpha.report.examples import _picks, find_examples
from memalpha.report.page import write_report
from memalpha.runs import RunFolder

INLINE = {"b", "del", "span"}
VOID = {"meta", "img", "source", "br"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; raises where an element is not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.text += "" if tag in INLINE else " "
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())


def page_of(run: RunFolder) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_the_page_lies_in_the_run_and_shows_its_numbers(finished_run: RunFolder) -> None:
    assert write_report(finished_run) == finished_run.path / "report" / "index.html"
    words = page_of(finished_run).words
    assert "Held-out accuracy 0.333 before and 0.333 after training: +0.000 ± 0.577, paired over 3 instances." in words
    assert "within two standard errors: no clear difference" in words
    assert "10 steps in 12.5 s" in words
    assert "before after difference accuracy 0.333 ± 0.333 0.333 ± 0.333 +0.000 ± 0.577 reward" in words
    assert "Greedy rollouts; ± is" in words
    assert "tool_weight 0.5" in words
    assert "train_options n 4" in words
    assert "adapter none" in words
    assert (finished_run.path / "report" / "table.md").read_text(encoding="utf-8").startswith("|  | before | after | difference |")


def test_rollouts_stand_side_by_side(finished_run: RunFolder) -> None:
    words = page_of(finished_run).words
    shown = words[words.index("Rollout 1: ann (largest gain in accuracy: +1.000)") : words.index("Rollout 2:")]
    for text in (
        "Chunk 1 of 2 · 2023-01-02 Ann: I live in Rome.",
        "before + insert facts 1 Ann lives in Rome reward 0.500: accuracy 0.00 tool 1.00 ",
        "x no call (unparsed: ",
        "after ~ update facts 1 Ann lives in Rome <script>alert(1)</script> Ann lives in Oslo [bold red]x",
        "Where does Ann live? latest gold: Oslo no longer: Rome before 0.00",
        "after 1.00",
        "before: accuracy 0.000, mean reward 0.250 · after: accuracy 1.000, mean reward 1.375",
    ):
        assert text in shown
    assert "Rollout 2: train-3-0 (median gain in accuracy: +0.000)" in words
    assert "cut off at the longest completion" in words[words.index("Rollout 2:") : words.index("Rollout 3:")]
    assert "Rollout 3: bob (largest loss in accuracy: -1.000)" in words


def test_text_of_data_and_options_is_text(finished_run: RunFolder) -> None:
    html = write_report(finished_run).read_text(encoding="utf-8")
    page = Page(html)
    assert "script" not in page.tags
    assert "<script" not in html
    # in a chunk, an entry, a call, a completion, a question, and the options
    assert page.text.count("<script>alert(1)</script>") >= 6
    assert "model" in page.text
    assert "nano <script>alert(1)</script>" in page.text


def test_the_page_needs_nothing_else(finished_run: RunFolder) -> None:
    html = write_report(finished_run).read_text(encoding="utf-8")
    links = [value for name, value in Page(html).attributes if name in ("src", "srcset", "href", "action", "data")]
    assert len(links) == 2
    light, dark = (base64.b64decode(value.removeprefix("data:image/png;base64,")) for value in reversed(links))
    assert light == (finished_run.path / "report" / "curves.png").read_bytes()
    assert dark == curves_png(finished_run.metrics(), finished_run.read_json("summary.json"), DARK)
    assert not re.search(r"https?:|url\(|@import", html)


def test_a_run_without_anything_yet(bare_run: RunFolder) -> None:
    page = page_of(bare_run)
    assert "no step logged yet" in page.words
    assert "No training step was logged." in page.words
    assert "No rollout was scored yet." in page.words
    assert "img" not in page.tags
    assert sorted(path.name for path in (bare_run.path / "report").iterdir()) == ["index.html"]


def test_a_run_on_its_way_shows_how_far_it_is(finished_run: RunFolder) -> None:
    (finished_run.path / "summary.json").unlink()
    (finished_run.path / "held_out" / "after.jsonl").unlink()
    finished_run.drop_after(4)
    words = page_of(finished_run).words
    assert "unfinished: step 4 of 10" in words
    titles = ["bob (highest accuracy: 1.000)", "ann (median accuracy: 0.000)", "train-3-0 (lowest accuracy: 0.000)"]
    assert [example.title for example in find_examples(finished_run)] == titles
    (finished_run.path / "held_out" / "before.jsonl").unlink()
    (example,) = find_examples(finished_run)
    assert example.title == "ann (a group of training step 2)"
    assert [side.label for side in example.sides] == ["best, mean reward 1.500", "worst, mean reward 0.000"]
    assert "advantage +0.500" in page_of(finished_run).words
    assert "advantage -0.250" in page_of(finished_run).words


def test_one_evaluation_alone(finished_run: RunFolder) -> None:
    rows = list(finished_run.read_lines("held_out/after.jsonl"))
    for name in ("before", "after"):
        (finished_run.path / "held_out" / f"{name}.jsonl").unlink()
    finished_run.write_lines("held_out/rollouts.jsonl", rows)
    finished_run.write_json("summary.json", {"seconds": 300, **finished_run.read_json("summary.json")["after"]})
    words = page_of(finished_run).words
    assert "Accuracy 0.333 ± 0.333 on 3 held-out instances." in words
    assert "evaluation in 5.0 min" in words
    assert "Rollout 1: ann (highest accuracy: 1.000)" in words
    assert "held out 1.00" in words


def test_what_could_not_be_scored_is_not_zero(finished_run: RunFolder) -> None:
    def mask(row: dict[str, Any]) -> dict[str, Any]:
        for step in row["rollout"]["steps"]:
            step["reward"]["accuracy"] = step["total"] = None
        for question in row["rollout"]["questions"]:
            question.update(score=None, answer=None, error="the reader is down")
        return {"result": {**row["result"], "accuracy": None}, "rollout": row["rollout"]}

    rows = list(finished_run.read_lines("held_out/after.jsonl"))
    finished_run.write_lines("held_out/after.jsonl", [mask(rows[0]), *rows[1:]])
    assert [example.title[:3] for example in find_examples(finished_run)] == ["tra", "bob"]
    finished_run.write_lines("held_out/after.jsonl", [mask(row) for row in rows])
    finished_run.write_lines("held_out/before.jsonl", [mask(row) for row in rows])
    for path in finished_run.trajectory_files():
        path.unlink()
    assert find_examples(finished_run) == []


def test_a_masked_question_says_why(finished_run: RunFolder) -> None:
    rows = list(finished_run.read_lines("held_out/after.jsonl"))
    rows[0]["rollout"]["questions"][0].update(score=None, answer=None, error="the reader is down")
    finished_run.write_lines("held_out/after.jsonl", rows)
    assert "after – could not be scored: the reader is down no answer" in page_of(finished_run).words


def test_picks_are_each_taken_once() -> None:
    names = ("high", "mid", "low")
    assert _picks({"a": 1.0, "b": 3.0, "c": 2.0, "d": 0.0}, names) == {"b": "high", "c": "mid", "d": "low"}
    assert _picks({"a": 1.0, "b": 1.0}, names) == {"a": "high", "b": "low"}
    assert _picks({"a": 1.0}, names) == {"a": "high"}


def test_how_held_out_rollouts_were_drawn(finished_run: RunFolder) -> None:
    warm = RunFolder.create(finished_run.path.with_name("warm"), {"eval_temperature": 0.7})
    warm.write_json("summary.json", finished_run.read_json("summary.json"))
    assert "Rollouts drawn at temperature 0.7; ± is" in page_of(warm).words


def test_a_control_says_so(bare_run: RunFolder) -> None:
    assert "A control" not in page_of(bare_run).words
    control = RunFolder.create(bare_run.path.with_name("control"), {"shuffle_advantages": True})
    assert "A control: the advantages of this run were shuffled" in page_of(control).words


def test_a_damaged_file_is_named(finished_run: RunFolder) -> None:
    path = finished_run.path / "held_out" / "after.jsonl"
    path.write_text(path.read_text(encoding="utf-8") + json.dumps({"result": 1})[:-3] + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"after\.jsonl, line 4 is damaged"):
        write_report(finished_run)
