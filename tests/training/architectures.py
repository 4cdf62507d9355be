"""Every causal LM of the installed transformers, small and random: drawn from, and updated.

``python tests/training/architectures.py`` writes docs/models.md; names after it do only those.
"""

import logging
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator
from memalpha.generation.small import small_config, small_model, undisturbed
from memalpha.types import Prompt, Sampling
from memalpha.update.attention import NAME
from memalpha.update.logps import Row, packed_logps
from memalpha.update.prepare import prepare_policy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
# configurations whose defaults make no model
DEFAULTS = {
    "BambaConfig": {"attn_layer_indices": [1]},
    "CohereCompassTextConfig": {"layer_types": ["sliding_attention", "full_attention"] * 16},
    "DeepseekV2Config": {"topk_method": "greedy", "n_group": 1, "topk_group": 1},
    "Dots1Config": {"n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "GraniteMoeHybridConfig": {"layer_types": ["linear_attention", "full_attention"] * 16},
    "HunYuanDenseV1Config": {"head_dim": 128},
    "HunYuanMoEV1Config": {"head_dim": 128},
    "Lfm2Config": {"layer_types": ["conv", "full_attention"] * 16},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"] * 16},
    "MinistralConfig": {"head_dim": 128},
    "NemotronConfig": {"num_key_value_heads": 8, "head_dim": 128},
    "ReformerConfig": {"is_decoder": True},
}

PROMPTS = [  # two that share a prefix, of different lengths, one twice; and one by itself
    Prompt((), (5, 9, 11, 17), 2),
    Prompt((), (5, 9, 31), 2),
    Prompt((), (5, 9, 11, 17), 2),
    Prompt((), (40,), 0),
]
SHORT = [  # within a window of 8
    Row((5, 9, 11, 17), (21, 33, 8, 2), 2),
    Row((5, 9, 31), (44, 3), 2),
    Row((40,), (7, 12, 6), 0),
    Row((5, 9), (50, 51), 2),
]
LONG = [
    Row((*range(30, 50), 4, 5), (9, 8, 7), 20),
    Row((*range(30, 50), 6), (10, 60, 61, 62, 11), 20),
]
EXACT = 1e-4


class Record(NamedTuple):
    """What was seen of an architecture: ``why`` it is not packed, not trained, or not drawn."""

    name: str
    update: str  # packed, alone, refused, no model
    draws: bool
    why: str


def alone(model, row):
    """Log-probabilities of a completion, by transformers' own forward of the row."""
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
    logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt_ids) - 1 : -1]
    targets = torch.tensor(row.completion_ids)[:, None]
    return logits.float().log_softmax(-1).gather(1, targets)[:, 0]


def gradient(model, logps):
    """The gradient of a weighted sum, all weights in one."""
    joined = torch.cat(logps)
    loss = (joined * torch.linspace(1, 2, len(joined))).sum()
    weights = list(model.parameters())
    parts = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in parts])


def update_error(model, rows):
    """How far log-probabilities (nats) and the gradient (by its size) are from transformers' own;
    ``model`` goes through ``prepare_policy`` between."""
    model.train()
    expected = [alone(model, row) for row in rows]
    expected_gradient = gradient(model, expected)
    prepare_policy(model)
    scores = [of_row.logps for of_row in packed_logps(model, rows)]
    far = max((a - b).abs().max().item() for a, b in zip(scores, expected, strict=True))
    apart = (gradient(model, scores) - expected_gradient).norm() / expected_gradient.norm()
    return max(far, apart.item())


def drawing_error(model, prompts=PROMPTS, new_tokens=3):
    """How far the log-probabilities of what is drawn are from transformers' own, in nats."""
    tokenizer = SimpleNamespace(eos_token_id=None, decode=str)
    model.generation_config.eos_token_id = None
    generator = HFGenerator(model.eval(), tokenizer, logprobs=True)
    done = generator.generate(prompts, Sampling(new_tokens, temperature=1.0, seed=1))
    worst = 0.0
    for prompt, completion in zip(prompts, done, strict=True):
        with torch.no_grad():
            own = alone(model, Row(prompt.ids, completion.ids))
        worst = max(worst, (own - torch.tensor(completion.logprobs)).abs().max().item())
    return worst


def first_line(error):
    """The first line of an error, without its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def record(config_class, kind, caplog):
    """Draw from a small random model of an architecture, and update it."""
    name = kind.__name__
    options = DEFAULTS.get(config_class.__name__, {})
    try:
        with undisturbed():
            model = small_model(kind, small_config(config_class(**options)))
    except Exception as error:  # noqa: BLE001
        return Record(name, "no model", False, first_line(error))
    reasons = []
    try:
        assert drawing_error(model) < EXACT, f"{name} draws wrongly"
        draws = True
    except InputError as error:
        draws = False
        reasons.append(first_line(error))
    caplog.clear()
    try:
        error = update_error(model, [*SHORT, *LONG])
        assert error < EXACT, f"{name} is updated wrongly: {error}"
        update = "packed" if model.config._attn_implementation == NAME else "alone"
        if update == "alone":
            reasons = [message.split(": the update computes")[0] for message in caplog.messages]
    except InputError as error:
        update = "refused"
        reasons = [first_line(error)]
    return Record(name, update, draws, "; ".join(reasons).replace(name + " ", ""))


def walk(caplog, names=()):
    """Yield a record of each architecture."""
    seen = set()
    for config_class, kinds in MODEL_FOR_CAUSAL_LM_MAPPING.items():
        kind = kinds[0] if isinstance(kinds, tuple) else kinds
        if (names and kind.__name__ not in names) or kind in seen:
            continue
        made = record(config_class, kind, caplog)
        if made.update != "no model":
            seen.add(kind)
        yield made
