"""Every benchmark runs and ends in one JSON object; ratios by hand, FLOPs as torch counts them."""

import json
import os

import bench
import pytest
import torch
from benchmarks import common, update
from torch.utils.flop_counter import FlopCounterMode

from memalpha.generation import products
from memalpha.update import attention
from memalpha.update.logps import CompletionRow, packed_logps
from memalpha.update.prepare import prepare_policy
from tests.training.test_packed import make_lora, make_rows


@pytest.mark.parametrize("name", bench.NAMES)
def test_a_quick_run_ends_in_one_json_object(monkeypatch, capsys, name):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    threads = torch.get_num_threads()
    words = [name, "--quick", "--json", *(["--entries", "100"] if name == "retrieval" else [])]
    assert bench.main(words) == 0
    torch.set_num_threads(threads)
    (line,) = capsys.readouterr().out.splitlines()
    record = json.loads(line)
    assert list(record) == ["name", "ratios", "details"] and record["name"] == name
    assert all(isinstance(value, int | float) for value in record["ratios"].values())
    named = {"command", "date", "machine", "versions", "sizes", "table"}
    assert record["ratios"] and named <= set(record["details"])
    assert record["details"]["command"] == " ".join(["python scripts/bench.py", *words])


def test_ratios_by_hand():
    slow = common.Series((2.0, 4.0, 6.0, 8.0, 40.0), (1.0,) * 5)
    fast = common.Series((1.0, 1.0, 2.0, 2.0, 4.0), (2.0,) * 5)
    assert common.ratio(slow, fast) == (6.0 / 2.0, 3.0, 4.0)  # single rounds: 2, 4, 3, 4, 10
    assert common.ratio(slow, fast, "cpu") == (0.5, 0.5, 0.5)
    assert common.ratio(common.Series((1.0, 3.0), ()), common.Series((1.0, 1.0), ())) == (
        2.0,
        1.0,
        3.0,
    )


# ------------------------------------------------------------------------------------------------
# FLOPs of an update
@pytest.mark.parametrize("lowest", [0, 1])
def test_products_of_matrices_are_those_that_run(lowest, monkeypatch):
    monkeypatch.setattr(products, "faster", lambda: False)  # what is counted are torch's own
    monkeypatch.setattr(attention, "runs_tiles", lambda *_: False)
    model, rows = make_lora(), make_rows()
    for name, parameter in model.named_parameters():
        if any(f".layers.{i}." in name for i in range(lowest)):
            parameter.requires_grad_(False)
    prepare_policy(model)
    claimed = update.flops(model, rows, len(rows))
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **kwargs: 2 * a[0] * a[1] * b[1]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        sum(scores.logps.sum() for scores in packed_logps(model, rows)).backward()
    counted = sum(
        value for name, value in counter.get_flop_counts()["Global"].items() if "mm" in str(name)
    )
    assert counted == pytest.approx(
        1e9 * (claimed["gflop_linear"] + claimed["gflop_adapters"] + claimed["gflop_head"])
    )


def test_attention_counts_the_pairs_that_see_each_other():
    rows = [CompletionRow((1, 2, 3), (7, 8), 2), CompletionRow((1, 2), (9, 4), 2)]
    # prefix 1 + 2; own parts: 3 and 7 see 3 and 4 tokens, 9 sees 3: 13 pairs; 2 layers, 4 heads of
    # 8, two products, three passes
    assert update.flops(make_lora(), rows, 2)["gflop_attention"] == pytest.approx(
        13 * 2 * 4 * 8 * 2 * 2 * 3 / 1e9
    )
