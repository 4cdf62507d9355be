"""The pages of a site by value, read without a browser; test_browser.py opens them in one."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from memalpha.errors import InputError
from memalpha.measure.site import (
    facts_of_run,
    failures,
    kept_steps,
    rollouts_table,
    troubles,
    write_site,
)
from memalpha.record.folder import RunFolder

Read = Callable[[Path], Any]
EVIL = "<script>alert(1)</script>"


def index_of(page: Any) -> list[list[Any]]:
    return json.loads(next(text for text in page.scripts if text.strip()))


VALUES = {
    "index.html": (
        "Held-out accuracy .333 before and .333 after training: +.000 [-1.000, +1.000], "
        "paired over 3 instances. The interval does not exclude 0: no clear difference.",
        "10 steps in 12.5 s",
        "before after accuracy .333 [.000, 1.000]* .333 [.000, 1.000]* minus `before` – +.000 [",
        "facts/insert, share of calls .667 .400 facts/update, share of calls .000 .200",
        "Greedy rollouts.",
        "tool_weight: 0.5",
        "before: unparsed 1 (33.3%) of 3 calls",
        "Everything was scored and no step was skipped.",
        "10 rollouts have a page: all of them, with filters.",
    ),
    "rollouts/after-0000.html": (
        "ann after from hand · 2 chunks,",
        "accuracy 1.000 mean reward 1.375 memory 1 entry",
        "calls 3 1 insert, 1 update, 0 delete, 1 failed",
        "Chunk 1 of 2 · 2023-01-02",
        f"+ insert facts 1 Ann lives in Rome {EVIL} completion,",
        "reward 1.500",
        f"~ update facts 1 Ann lives in Rome {EVIL} Ann lives in Oslo [bold red]x[/bold red] [/] \x1b[2J",
        "x delete facts 9 failed unknown_id:",
        f"~ 1 [2023-01-02] Ann lives in Rome {EVIL} [2023-02-03] Ann lives in Oslo",
        "1 Where does Ann live? 1.00 right kind latest gold Oslo no longer true Rome answer [2023-02-03] Ann lives in Oslo",
        "entry 1, written at chunk 2",
        "The final memory 1 [2023-02-03] Ann lives in Oslo",
    ),
    "rollouts/before-0000.html": ("x no call failed unparsed: ",),
    "rollouts/after-0002.html": (
        "cut off at the longest completion",
        "no call: the policy kept silent",
    ),
    "rollouts/step-000001-rank-0-0001.html": ("advantage -.500", "0.00 wrong"),
}


def test_every_page_is_there_shows_its_values_and_links_lead_somewhere(
    finished_run: RunFolder, read_page: Read
) -> None:
    first = write_site(finished_run)
    root = first.parent.resolve()
    assert first == finished_run.path / "report" / "index.html"
    pages = {path.relative_to(root).as_posix(): read_page(path) for path in root.rglob("*.html")}
    assert sorted(pages) == [
        "index.html",
        "rollouts.html",
        *(f"rollouts/{name}-000{i}.html" for name in ("after", "before") for i in range(3)),
        *(f"rollouts/step-00000{step}-rank-0-000{i}.html" for step in (1, 2) for i in range(2)),
    ]
    for name, values in VALUES.items():
        assert [value for value in values if value not in pages[name].words] == [], name
    found = {row[0]: row[1:] for row in index_of(pages["rollouts.html"])}
    assert len(found) == 10
    # where, instance, reward, accuracy, calls, failed, inserts, updates, deletes, wrong, questions,
    # cut off, masked, entries
    assert found["after-0000.html"] == [
        "after",
        "ann",
        1.375,
        1.0,
        3,
        1,
        1,
        1,
        0,
        0,
        1,
        0,
        False,
        1,
    ]
    assert found["step-000002-rank-0-0001.html"] == [
        "step 2",
        "ann",
        0.0,
        0.0,
        0,
        0,
        0,
        0,
        0,
        1,
        1,
        0,
        False,
        0,
    ]
    checked = 0
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), name
        for link in page.links:
            target, _, anchor = link.partition("#")
            if link.startswith("data:"):
                continue
            checked += 1
            lies = (
                (root / name).parent.joinpath(unquote(target)).resolve() if target else root / name
            )
            assert lies.is_file() and root in lies.parents, (name, link)
            if anchor and lies.name != "rollouts.html":
                assert anchor in pages[lies.relative_to(root).as_posix()].ids, (name, link)
    assert checked > 100


def test_text_of_data_and_options_is_text_and_nothing_is_fetched(
    finished_run: RunFolder, read_page: Read
) -> None:
    rows = list(finished_run.read_lines("held_out/after.jsonl"))
    hostile = "</script><script>alert(2)</script>"
    rows[0]["rollout"]["instance"] = rows[0]["instance"] = hostile
    finished_run.write_lines("held_out/after.jsonl", rows)
    root = write_site(finished_run).parent
    for path in [*root.rglob("*.html"), *root.rglob("*.css"), *root.rglob("*.js")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttp|innerHTML|eval\(", text), path
        if path.suffix == ".html":
            assert (
                "default-src 'none'; style-src 'self' file:; script-src 'self' file:; img-src 'self' file: data:"
                in text
            )
            page = read_page(path)
            lists = path.name == "rollouts.html"
            assert text.count("<script") == page.tags.count("script") == (3 if lists else 1), path
            assert [script for script in page.scripts if script.strip()] == (
                [page.scripts[-1]] if lists else []
            )
            assert not [name for name, _ in page.attributes if name.startswith("on")]
    page = read_page(root / "rollouts" / "after-0000.html")
    assert page.text.count(EVIL) >= 6 and page.words.startswith(f"{hostile}, after · memalpha")
    assert hostile in [row[2] for row in index_of(read_page(root / "rollouts.html"))]
    assert f"nano {EVIL}" in read_page(root / "index.html").text


def test_a_run_without_anything_yet_and_one_on_its_way(
    bare_run: RunFolder, read_page: Read
) -> None:
    root = write_site(bare_run).parent
    for text in (
        "unfinished: step 0 of many",
        "No training step was logged.",
        "No rollout is recorded.",
    ):
        assert text in read_page(root / "index.html").words
    assert sorted(path.name for path in root.rglob("*.html")) == ["index.html", "rollouts.html"]
    bare_run.append_line("metrics.jsonl", {"step": 4, "max_steps": 10})
    assert "unfinished: step 4 of 10" in read_page(write_site(bare_run)).words


def test_what_could_not_be_scored_is_not_zero(finished_run: RunFolder, read_page: Read) -> None:
    def mask(row: dict[str, Any]) -> dict[str, Any]:
        for step in row["rollout"]["steps"]:
            step["reward"]["accuracy"] = step["total"] = None
        for question in row["rollout"]["questions"]:
            question.update(score=None, answer=None, error="the reader is down")
        return {**row, "questions": [{**row["questions"][0], "score": None}]}

    rows = list(finished_run.read_lines("held_out/after.jsonl"))
    finished_run.write_lines("held_out/after.jsonl", [mask(rows[0]), *rows[1:]])
    root = write_site(finished_run).parent
    words = read_page(root / "rollouts" / "after-0000.html").words
    for text in (
        "accuracy – mean reward – memory",
        "– not scored kind latest",
        "not scored the reader is down",
        "it is masked",
    ):
        assert text in words
    assert "after: the reader is down" in read_page(root / "index.html").words
    facts = list(facts_of_run(finished_run))
    (masked,) = (fact for fact in facts if fact["page"] == "after-0000.html")
    shown = [masked[name] for name in ("reward", "accuracy", "wrong", "questions", "masked")]
    assert shown == [None, None, 0, 1, True]
    assert failures(facts) == {
        "before": (3, {"unparsed": 1}),
        "after": (5, {"unknown_id": 1, "unparsed": 1}),
        "training": (4, {}),
    }
    assert troubles(facts, [{"step": 3, "skipped": 1.0}, {"step": 4, "skipped": 0.0}]) == {
        ("step 3", "the step was skipped: loss or gradient was not finite"): 1,
        ("after", "the reader is down"): 1,
    }


@pytest.mark.parametrize("name", ["held_out/after.jsonl", "trajectories/step-000002-rank-0.jsonl"])
def test_a_damaged_line_is_named_before_anything_is_written(
    finished_run: RunFolder, name: str
) -> None:
    (finished_run.path / name).write_text('{"result": 1\n', encoding="utf-8")
    readers: list[Callable[[RunFolder], Any]] = [write_site, rollouts_table]
    for read in readers:
        with pytest.raises(InputError, match=rf"{name}, line 1"):
            read(finished_run)
    assert not (finished_run.path / "report").exists()


def test_pages_are_limited_by_whole_steps_and_the_page_says_so(
    finished_run: RunFolder, read_page: Read
) -> None:
    root = write_site(finished_run).parent
    (root / "notes.txt").write_text("mine", encoding="utf-8")
    write_site(finished_run, limit=2)  # leaves no page of the first
    assert (root / "notes.txt").read_text(encoding="utf-8") == "mine"
    found = {path.name for path in (root / "rollouts").glob("step-*")}
    assert found == {f"step-000002-rank-0-000{i}.html" for i in range(2)}
    assert (
        "8 rollouts have a page: all of them, with filters. Of the 4 in training 2 do"
        in read_page(root / "index.html").words
    )
    counts = dict.fromkeys(range(1, 101), 8)
    assert kept_steps(counts, 0) == kept_steps(counts, 800) == set(counts)
    assert sorted(kept_steps(counts, 40)) == [1, 26, 50, 75, 100] and kept_steps(counts, 3) == {100}
