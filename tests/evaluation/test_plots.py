"""Pictures by the values that were drawn: every point, its interval, its colour, and what is not there."""

from dataclasses import replace

import pytest
from examples import result, write_results
from matplotlib.colors import to_hex
from test_tables import KINDS, SCORES, configure

from memalpha.errors import InputError
from memalpha.evaluation.plots import COLOURS, plot_chunks, plot_comparison, plot_kinds, plot_memory, write_plots
from memalpha.evaluation.statistics import estimate
from memalpha.evaluation.summary import summarise_evaluation


@pytest.fixture
def folder(tmp_path):
    rows = []
    for name in ("short", "long"):
        for chunks, system in enumerate(SCORES, 2):
            for i, instance in enumerate("abc"):
                row = result(instance, SCORES[system][instance], KINDS[instance], system=system, set=name)
                rows.append(replace(row, chunks=3 if name == "short" else 30 + 10 * (i == 2), memory_tokens=10**chunks))
    return write_results(configure(tmp_path, sets=("short", "long")), rows)


@pytest.fixture
def summary(folder):
    return summarise_evaluation(folder)


def points(panel, sideways=False):
    """[(x, y, low, high, colour)] of a panel, in the order drawn; low and high None without an interval."""
    found = []
    for container in panel.containers:
        line, _, bars = container.lines
        (x,), (y,) = line.get_data()
        ends = [None, None]
        if bars:
            ends = sorted(point[0 if sideways else 1] for point in bars[0].get_segments()[0])
        found.append((x, y, *ends, to_hex(line.get_color())))
    return found


def as_drawn(accuracy):
    return pytest.approx((accuracy.mean, accuracy.low, accuracy.high))


def test_the_comparison_draws_every_system_of_every_set(summary):
    figure = plot_comparison(summary, "recall")
    assert [panel.get_title() for panel in figure.axes] == ["short (n = 3)", "long (n = 3)", "mean over sets"]
    estimates = [[cell.accuracy for cell in item.cells.values()] for item in summary.sets]
    estimates.append(list(summary.over_sets["recall"].values()))
    for panel, expected in zip(figure.axes, estimates, strict=True):
        for place, ((x, y, low, high, colour), accuracy) in enumerate(zip(points(panel, sideways=True), expected, strict=True)):
            assert (x, low, high) == as_drawn(accuracy) and y == place and colour == COLOURS[place]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rag", "warm", "agent"]
    assert figure.axes[0].get_ylim() == (2.5, -0.5)  # the first on top


def test_memory_is_drawn_against_accuracy(summary):
    figure = plot_memory(summary, "recall")
    panel = figure.axes[0]
    for (x, y, low, high, _), (tokens, cell) in zip(
        points(panel), zip((100, 1000, 10_000), summary.sets[0].cells.values(), strict=True), strict=True
    ):
        assert x == tokens and (y, low, high) == as_drawn(cell.accuracy)
    assert panel.get_xscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["rag", "warm", "agent"]


def test_kinds_are_drawn_in_columns(summary):
    figure = plot_kinds(summary, "recall", "short")
    (panel,) = figure.axes
    assert [label.get_text() for label in panel.get_xticklabels()] == ["latest\n(4)", "single\n(3)"]
    drawn = points(panel)
    assert len(drawn) == 6
    expected = [
        (column, cell.kinds[kind].accuracy)
        for cell in summary.sets[0].cells.values()
        for column, kind in enumerate(("latest", "single"))
    ]
    for (x, y, low, high, _), (column, accuracy) in zip(drawn, expected, strict=True):
        assert abs(x - column) < 0.5 and (y, low, high) == as_drawn(accuracy)
    assert len({round(x, 6) for x, *_ in drawn}) == 6  # none on top of another
    with pytest.raises(InputError, match="nothing to draw of set 'other'"):
        plot_kinds(summary, "recall", "other")


def test_chunks_are_drawn_by_length_over_the_chosen_sets(folder, summary):
    (panel,) = plot_chunks(folder, summary, "recall").axes
    mean = {instance: sum(scores) / len(scores) for instance, scores in SCORES["agent"].items()}
    expected = {
        3: estimate({"0": {f"short/{i}": mean[i] for i in "abc"}}),
        30: estimate({"0": {f"long/{i}": mean[i] for i in "ab"}}),
        40: estimate({"0": {"long/c": mean["c"]}}),
    }
    mine = [point for point in points(panel) if point[4] == COLOURS[2]]
    for (x, y, low, high, _), (chunks, accuracy) in zip(mine, expected.items(), strict=True):
        assert x == chunks
        assert (y, low, high) == (as_drawn(accuracy) if chunks < 40 else (accuracy.mean, None, None))
    (line,) = [line for line in panel.get_lines() if to_hex(line.get_color()) == COLOURS[2] and len(line.get_xdata()) == 3]
    assert list(line.get_ydata()) == [accuracy.mean for accuracy in expected.values()]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["3", "30", "40"]
    (only,) = plot_chunks(folder, summary, "recall", ["short"]).axes
    assert {x for x, *_ in points(only)} == {3}


def test_a_system_looks_the_same_everywhere_and_what_is_missing_is_not_drawn(folder):
    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    (folder / "results.jsonl").write_text(
        "".join(line for line in lines if '"system": "rag"' not in line or '"set": "long"' in line)
    )
    summary = summarise_evaluation(folder)
    short, long, over = plot_comparison(summary, "recall").axes
    assert [colour for *_, colour in points(short)] == list(COLOURS[1:3])
    assert [colour for *_, colour in points(long)] == list(COLOURS[:3])
    assert [colour for *_, colour in points(over)] == list(COLOURS[1:3])  # rag is not on every set
    for draw in (plot_comparison, lambda *given: plot_chunks(folder, *given)):
        with pytest.raises(InputError, match="'base'"):
            draw(summary, "base")


def test_all_pictures_are_written(folder, summary):
    paths = write_plots(folder, summary)
    names = ["recall-comparison", "recall-memory", "recall-chunks", "recall-kinds-short", "recall-kinds-long"]
    assert [path.stem for path in paths] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    lines = [result(system="rag", failed="down", questions=())]
    (folder / "results.jsonl").unlink()
    assert write_plots(folder, summarise_evaluation(write_results(folder, lines))) == []  # nothing to draw


def test_names_that_are_no_file_names_or_formulas_are_drawn_inside_the_folder(tmp_path):
    sets = ("a/b", "a b", r"a$\frac$")
    systems = (r"x$\q{$", "y")
    rows = [result(i, (1.0,), (r"k$\frac$",), system=s, set=n, reader=r) for i in "ab" for s in systems for n in sets
            for r in ("../up", "org/model")]  # fmt: skip
    readers = [{"name": name, "kind": "recall"} for name in ("../up", "org/model")]
    folder = write_results(configure(tmp_path / "run", systems, sets=sets, readers=readers), rows)
    written = write_plots(folder, summarise_evaluation(folder))
    assert len(set(written)) == len(written) == 2 * (3 + len(sets))
    assert sorted((folder / "plots").iterdir()) == sorted(written)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert {"org_model-kinds-a_b.png", ".._up-memory.png"} <= {path.name for path in written}
