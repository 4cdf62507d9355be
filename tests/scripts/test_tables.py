"""The pages of docs/ hold what the tables' maker makes of docs/results/*.json; how numbers read, by
hand."""

import csv
import io
import json
import statistics

import pytest
import tables


@pytest.mark.parametrize("page", tables.PAGES)
def test_the_committed_page_is_what_the_command_makes(page):
    for path, text in tables.outputs([page]).items():
        assert path.read_text(encoding="utf-8") == text, f"run: python scripts/tables.py {page}"


def test_a_table_is_replaced_in_its_place_alone_and_a_missing_place_is_an_error():
    page = "a\n<!-- one -->\nold <b>\n<!-- end -->\nb\n<!-- two -->\nkept\n<!-- end -->\n"
    assert tables.filled(page, {"one": lambda: "new"}) == page.replace("old <b>\n", "\nnew\n\n")
    with pytest.raises(ValueError, match="three"):
        tables.filled(page, {"three": lambda: ""})


def test_check_writes_nothing_and_fails_for_a_page_that_is_out_of_date(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "bars.md").write_text("<!-- bars -->\n<!-- end -->\n")
    rows = [{"asked": "a", "found": "b", "met": met} for met in (True, True, False, None)]
    (tmp_path / "docs" / "results" / "bars.json").write_text(json.dumps({"bars": rows}))
    monkeypatch.setattr(tables, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(tables, "read", tables.read.__wrapped__)
    assert (
        tables.main(["bars", "--check"]) == 1
        and "yes" not in (tmp_path / "docs" / "bars.md").read_text()
    )
    assert tables.main(["bars"]) == 0 and tables.main(["bars", "--check"]) == 0
    page = (tmp_path / "docs" / "bars.md").read_text()
    assert page.count("| yes |") == 2 and page.count("| **no** |") == 1
    assert "2 of 4 are met; 1 were not evaluated." in page
    assert capsys.readouterr().out == "out of date: docs/bars.md\nwritten: docs/bars.md\n"


def test_how_numbers_read():
    assert [tables.number(value) for value in (0.4125, -0.0001, 1.0, None)] == [
        ".412",
        ".000",
        "1.000",
        "–",
    ]
    assert tables.decimals(1234.567, 1) == "1,234.6" and tables.decimals(0.5, 2, "+") == "+0.50"
    assert (
        tables.with_error({"mean": 0.75, "stderr": 0.25, "n": 2, "left_out": 2})
        == "+0.750 ± 0.250 (2 of 4 left out)"
    )


def test_the_first_and_the_last_eighth_of_the_steps_are_averaged():
    curve = [
        {"step": step, "memory/entries": float(step), "memory/tokens": 2.0 * step}
        for step in range(1, 25)
    ]
    curve[-1] = {
        "step": 24,
        "memory/entries": 30.0,
    }  # tokens were not written down at the last step: left out
    assert tables.sampled({"curve": curve}) == {"entries at the end": (2.0, 25.0)}
    assert tables.sampled({"curve": curve[:15]}) == {}


def test_the_csv_of_the_comparison_has_the_numbers_of_its_record():
    rows = list(csv.DictReader(io.StringIO(tables.comparison_csv())))
    sets = tables.read("comparison")["summary"]["sets"]
    item = next(item for item in sets if (item["set"], item["reader"]) == ("squad", "base"))
    own = {
        row["quantity"]: row
        for row in rows
        if (row["set"], row["reader"], row["system"]) == ("squad", "base", "grpo")
    }
    seeds = [
        float(row["value"]) for name, row in own.items() if name.startswith("accuracy of grpo-")
    ]
    assert len(seeds) == 3 and float(own["accuracy"]["value"]) == pytest.approx(
        statistics.fmean(seeds), abs=1e-7
    )
    cell = item["cells"]["grpo"]
    assert float(own["memory_tokens"]["value"]) == pytest.approx(cell["costs"]["memory_tokens"])
    assert float(own["accuracy"]["low"]) == pytest.approx(cell["accuracy"]["low"])
    assert int(own["accuracy, kind single"]["questions"]) == 717
    assert own["cascade accuracy"]["value"] == ""  # not measured
    systems = sum(len(item["cells"]) for item in sets)
    assert (
        sum(row["quantity"] == "accuracy" and row["set"] != "mean over sets" for row in rows)
        == systems
    )
