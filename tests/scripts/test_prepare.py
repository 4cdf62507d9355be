"""Preparing the sets that a file names: their options exist, originals are found, and what is left
is said."""

import json
from pathlib import Path

import prepare
import pytest
import yaml
from data_samples import locomo_sample

from memalpha.data.load import SOURCES, iter_prepared, read_manifest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / "configs" / "data").glob("*.yaml"))
}
PUBLISHED = str(ROOT / "configs" / "data" / "published.yaml")


def answers(folder):
    return [question.answers for i in iter_prepared(folder) for question in i.questions]


@pytest.mark.parametrize("name", FILES)
def test_every_set_has_a_source_and_options_that_exist(name):
    for set_name, row in FILES[name]["sets"].items():
        source = SOURCES[row["source"]]
        options = row.get("options", {}) | dict.fromkeys(row.get("files", {}), "x")
        source.parse({key: str(value) for key, value in options.items()})
        assert source.needs_input == ("input" in row)
        assert row.get("against", set_name) in FILES[name]["sets"]


def test_every_source_that_reads_files_is_among_the_published_and_every_compared_set_is_prepared():
    published = {row["source"] for row in FILES["published"]["sets"].values()}
    assert published == {name for name, source in SOURCES.items() if source.needs_input}
    compared = yaml.safe_load((ROOT / "configs" / "evaluate" / "archive.yaml").read_text())["sets"]
    made = {f"runs/data/{name}" for name in FILES["recipe"]["sets"] if name.startswith("test-")}
    assert {row["data"] for row in compared} == made


def test_a_set_is_prepared_from_the_files_below_the_folder(tmp_path):
    (tmp_path / "deep" / "squad").mkdir(parents=True)
    (tmp_path / "deep" / "squad" / "dev_half_v2.json").touch()
    (tmp_path / "out" / "squad-train").mkdir(parents=True)
    config = {**FILES["recipe"], "output": str(tmp_path / "out")}
    names = ("test-squad", "test-dependent")
    made = {name: prepare.command(name, config["sets"][name], config, tmp_path) for name in names}
    checked = made["test-squad"]
    squad = str(tmp_path / "out" / "test-squad")
    assert checked[:4] == ["prepare", "squad", "--output", squad]
    original = tmp_path / "deep" / "squad" / "dev_half_v2.json"
    assert checked[checked.index("--input") + 1] == str(original)
    assert (
        checked[checked.index("--check-against") + 1] == str(tmp_path / "out" / "squad-train")
        and "--drop-leaks" in checked
    )
    assert (
        made["test-dependent"][4:6] == ["--seed", "14"] and "--input" not in made["test-dependent"]
    )
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


def test_nothing_to_prepare_or_no_tokenizer_is_an_error(tmp_path, capsys):
    assert prepare.main([PUBLISHED, str(tmp_path), "--output", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("error: no original file of any set")
    recipe = str(ROOT / "configs" / "data" / "recipe.yaml")
    given = [
        recipe,
        str(tmp_path),
        "--output",
        str(tmp_path / "out"),
        "--only",
        "test-dialogues",
    ]
    assert prepare.main([*given, "--model", str(tmp_path / "nothing")]) == 1


def test_a_set_that_is_there_is_kept_if_it_was_made_with_the_same_options(tmp_path, capsys):
    def main(n, *more, seed=3):
        config = {
            "output": str(tmp_path / "out"),
            "sets": {
                "a": {"source": "synthetic", "seed": seed, "options": {"n": n, "n_chunks": 3}}
            },
        }
        (tmp_path / "sets.yaml").write_text(json.dumps(config))
        return prepare.main([str(tmp_path / "sets.yaml"), str(tmp_path), *more])

    def made():
        return read_manifest(tmp_path / "out" / "a").instances

    assert main(2) == 0 and main(2) == 0 and made() == 2
    assert "a is there" in capsys.readouterr().out
    assert main(4) == 1 and made() == 2
    assert "was made with n 2, not 4" in capsys.readouterr().err
    assert main(2, seed=4) == 1
    assert main(4, "--overwrite") == 0 and made() == 4
