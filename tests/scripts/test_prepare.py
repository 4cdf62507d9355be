"""Preparing the sets that a file names: their options exist, originals are found, and what is left
is said."""

import json
from pathlib import Path

import prepare
import pytest
import yaml

from memalpha.data.load import BUILT_IN_SOURCES, iter_prepared, read_manifest
from tests.helpers.data_samples import locomo_sample

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / "configs" / "data").glob("*.yaml"))
}
PUBLISHED = "published"


def answers(folder):
    return [question.answers for i in iter_prepared(folder) for question in i.questions]


@pytest.mark.parametrize("name", FILES)
def test_every_set_has_a_source_and_options_that_exist(name):
    for set_name, row in FILES[name]["sets"].items():
        source = BUILT_IN_SOURCES[row["source"]]
        options = row.get("options", {}) | dict.fromkeys(row.get("files", {}), "x")
        source.parse({key: str(value) for key, value in options.items()})
        assert source.needs_input == ("input" in row)
        assert row.get("against", set_name) in FILES[name]["sets"]


def test_every_source_that_reads_files_is_among_the_published():
    published = {row["source"] for row in FILES["published"]["sets"].values()}
    reading = {name for name, source in BUILT_IN_SOURCES.items() if source.needs_input}
    assert published == reading


def test_a_set_is_prepared_from_the_files_below_the_folder(tmp_path):
    original = tmp_path / "deep" / "squad" / "dev_half_v2.json"
    original.parent.mkdir(parents=True)
    original.touch()
    (tmp_path / "out" / "squad-train").mkdir(parents=True)
    config = {**FILES["recipe"], "output": str(tmp_path / "out")}
    made = prepare.command("test-squad", config["sets"]["test-squad"], config, tmp_path)
    assert made[:4] == ["prepare", "squad", "--output", str(tmp_path / "out" / "test-squad")]
    assert made[made.index("--input") + 1] == str(original)
    assert made[made.index("--check-against") + 1] == str(tmp_path / "out" / "squad-train")
    with pytest.raises(prepare.InputError, match=r"hotpotqa_train_100q\.json"):
        prepare.command("test-hotpotqa", config["sets"]["test-hotpotqa"], config, tmp_path)


def test_training_parts_leave_out_what_is_tested_and_a_damaged_file_stops_no_other(
    tmp_path, capsys
):
    originals = tmp_path / "in"
    for folder in ("trec", "nested/locomo", "squad"):
        (originals / folder).mkdir(parents=True)
    sentences = [f"{'ABC'[n % 3]}:x sentence {n} about {'abc'[n % 3]} ?\n" for n in range(60)]
    (originals / "trec" / "train.txt").write_text("".join(sentences))
    (originals / "trec" / "test.txt").write_text(
        "".join(sentences[50:55]) + "A:x another about a ?\n"
    )
    (originals / "nested" / "locomo" / "locomo10.json").write_text(json.dumps([locomo_sample()]))
    (originals / "squad" / "train.json").write_text("[{")
    assert (
        prepare.main([PUBLISHED, str(originals), "--output", str(tmp_path / "out"), "--seed", "1"])
        == 1
    )
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert made == [
        "locomo-test",
        "trec_coarse-test",
        "trec_coarse-train",
        "trec_fine-test",
        "trec_fine-train",
    ]
    test, train = (
        read_manifest(tmp_path / "out" / f"trec_fine-{part}") for part in ("test", "train")
    )
    assert (test.seed, test.questions, test.options["examples"].endswith("train.txt")) == (
        1,
        6,
        True,
    )
    assert train.skipped["held out"] == 5 and train.checked_against == ["trec_fine-test"]
    assert "squad" in capsys.readouterr().err


def test_a_set_that_is_there_is_kept_if_it_was_made_with_the_same_options(tmp_path):
    for n, more, code, instances in ((2, (), 0, 2), (4, (), 1, 2), (4, ("--overwrite",), 0, 4)):
        options = {"n": n, "n_chunks": 3}
        sets = {"a": {"source": "synthetic", "seed": 3, "options": options}}
        config = tmp_path / "sets.yaml"
        config.write_text(json.dumps({"output": str(tmp_path / "out"), "sets": sets}))
        assert prepare.main([str(config), str(tmp_path), *more]) == code
        assert read_manifest(tmp_path / "out" / "a").instances == instances
