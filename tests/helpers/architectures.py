"""Every causal LM of the installed transformers, small and random: drawn from, and updated.

``python tests/helpers/architectures.py`` writes docs/reference/base-models.md;
names after it do only those.
"""

import logging
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch
import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator
from memalpha.generation.small import keeping_random_state, small_config, small_model
from memalpha.types import Prompt, Sampling
from memalpha.update.attention import NAME
from memalpha.update.logps import CompletionRow, packed_logps
from memalpha.update.prepare import prepare_policy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "base-models.md"

# configurations whose defaults make no model
DEFAULTS = {
    "BambaConfig": {"attn_layer_indices": [1]},
    "DeepseekV2Config": {"topk_method": "greedy", "num_experts_per_tok": 2},
    "Dots1Config": {"n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "FalconConfig": {"num_attention_heads": 64, "hidden_size": 4096},
    "GraniteMoeHybridConfig": {"layer_types": ["linear_attention", "full_attention"] * 16},
    "HunYuanDenseV1Config": {"head_dim": 128},
    "HunYuanMoEV1Config": {"head_dim": 128},
    "Lfm2Config": {"layer_types": ["conv", "full_attention"] * 16},
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"] * 16},
    "MinistralConfig": {"head_dim": 128},
    "NemotronConfig": {"num_key_value_heads": 8, "head_dim": 128},
}

# what makes no model when made small: their sizes depend on one another
UNTRIED = ("BltConfig", "ReformerConfig", "ZambaConfig", "Zamba2Config", "xLSTMConfig")

PROMPTS = [  # two that share a prefix, of different lengths, one twice; and one by itself
    Prompt((), (5, 9, 11, 17), 2),
    Prompt((), (5, 9, 31), 2),
    Prompt((), (5, 9, 11, 17), 2),
    Prompt((), (40,), 0),
]
SHORT = [  # within a window of 8
    CompletionRow((5, 9, 11, 17), (21, 33, 8, 2), 2),
    CompletionRow((5, 9, 31), (44, 3), 2),
    CompletionRow((40,), (7, 12, 6), 0),
    CompletionRow((5, 9), (50, 51), 2),
]
LONG = [
    CompletionRow((*range(30, 50), 4, 5), (9, 8, 7), 20),
    CompletionRow((*range(30, 50), 6), (10, 60, 61, 62, 11), 20),
]
EXACT = 1e-4


class Record(NamedTuple):
    """What was seen of an architecture: ``why`` it is not packed, not trained, or not drawn."""

    name: str
    update: str  # packed, alone, refused, no model
    draws: bool
    why: str


class Ids:
    """Stands for a tokenizer of ids without meaning."""

    eos_token_id = None

    def __init__(self):
        self.added_tokens_decoder = {}

    def decode(self, ids, skip_special_tokens):
        return str(ids)


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
    weights = [weight for weight in model.parameters() if weight.requires_grad]
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
    model.generation_config.eos_token_id = None
    generator = HFGenerator(model.eval(), Ids(), logprobs=True)
    done = generator.generate(prompts, Sampling(new_tokens, temperature=1.0, seed=1))
    worst = 0.0
    for prompt, completion in zip(prompts, done, strict=True):
        with torch.no_grad():
            own = alone(model, CompletionRow(prompt.ids, completion.ids))
        worst = max(worst, (own - torch.tensor(completion.logprobs)).abs().max().item())
    return worst


def first_line(error):
    """The first line of an error, without its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def computes(model):
    """Whether it computes anything of token ids."""
    try:
        with torch.no_grad():
            alone(model, LONG[0])
    except Exception:  # noqa: BLE001
        return False
    return True


def make(config_class, kind):
    """Return a small random model of an architecture."""
    config = small_config(config_class(**DEFAULTS.get(config_class.__name__, {})))
    if not isinstance(config, kind.config_class):
        config = config.get_text_config()
    with keeping_random_state():
        return small_model(kind, config)


def record(config_class, kind, messages):
    """Draw from a small random model of an architecture, and update it; ``messages``: the list of
    what is logged."""
    name = kind.__name__
    if config_class.__name__ in UNTRIED:
        return Record(name, "no model", False, "its sizes depend on one another")
    try:
        model = make(config_class, kind)
    except Exception as error:  # noqa: BLE001
        return Record(name, "no model", False, first_line(error))
    reasons = []
    draws = False
    able = computes(model)
    try:
        if able:
            error = drawing_error(model)
            assert error < EXACT, f"{name} draws wrongly by {error}"
        else:
            HFGenerator(model, Ids())
        draws = True
    except InputError as error:
        reasons.append(first_line(error))
    messages.clear()
    try:
        if able:
            error = update_error(model, [*SHORT, *LONG])
            assert error < EXACT, f"{name} is updated wrongly by {error}"
        else:
            prepare_policy(model)
        assert able, f"{name} computes nothing and is not refused"
        update = "packed" if model.config._attn_implementation == NAME else "alone"
        reasons += [message.split(": the update computes")[0] for message in messages]
    except InputError as error:
        update = "refused"
        reasons = [first_line(error)]
    why = [reason.replace(f"{name} ", "") for reason in reasons]
    return Record(name, update, draws, "; ".join(dict.fromkeys(why)))


class Messages(logging.Handler):
    """Collects what the package logs."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def walk(names=()):
    """Return a record of each architecture, by name."""
    handler = Messages()
    logger = logging.getLogger("memalpha")
    logger.addHandler(handler)
    records = {}
    for config_class, kinds in MODEL_FOR_CAUSAL_LM_MAPPING.items():
        kind = kinds[0] if isinstance(kinds, tuple) else kinds
        name = kind.__name__
        known = name in records and records[name].update != "no model"
        if not known and (not names or name in names):
            records[name] = record(config_class, kind, handler.messages)
    logger.removeHandler(handler)
    return records


GROUPS = (
    ("packed", True, "Drawn and trained, with shared prefixes read once"),
    ("alone", True, "Drawn and trained, each row by itself"),
    ("packed", False, "Trained, and drawn with vLLM alone"),
    ("alone", False, "Trained, each row by itself, and drawn with vLLM alone"),
    ("refused", True, "Drawn, and refused in training"),
    ("refused", False, "Refused"),
    ("no model", False, "Not tried, because no small model could be made"),
)


def page(records):
    """Return docs/reference/base-models.md."""
    lines = [
        "# Base models",
        "",
        "This page says of each architecture of causal language models whether memalpha can train it and",
        f"draw from it. It has the {len(records)} of transformers {transformers.__version__}. Look up the architecture",
        "of your model (`architectures` in its `config.json`).",
        "",
        "You need not rely on this list. Before a run draws or trains, it makes a small random copy of",
        "the model's architecture (with the same switches, in float32). The copy draws and computes an",
        "update within a moment. Both are compared with transformers' own forward pass of each row:",
        f"log-probabilities to {EXACT} nats, and the gradient to {EXACT} of its size. If they differ,",
        "the run computes each row by itself and warns, or it stops and names the architecture.",
        "",
        "* **Drawn** means that memalpha's own generator draws completions. Where it cannot, use",
        "  `generator: vllm`.",
        "* **Shared prefixes read once** means that rows of one group go through the update together,",
        "  and their common prompt is computed once. *Each row by itself* is slower, and right as well.",
        "* Each architecture with a sliding window or chunks was tried with 8 tokens of them. A run",
        "  whose rows can be longer than a sliding window is refused.",
        "* A text before a list is the reason. It quotes messages of memalpha and of transformers.",
        "",
        "`python tests/helpers/architectures.py` writes this page.",
        "",
    ]
    for update, draws, title in GROUPS:
        found = [one for one in records.values() if (one.update, one.draws) == (update, draws)]
        if not found:
            continue
        lines += [f"## {title} ({len(found)})", ""]
        reasons = defaultdict(list)
        for one in found:
            reasons[one.why].append(one.name)
        for why, names in sorted(reasons.items()):
            listed = ", ".join(sorted(names))
            lines += [f"* {why.rstrip(':')}: {listed}"] if why else [listed, ""]
        lines += [""] if lines[-1] else []
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    PAGE.write_text(page(walk()), encoding="utf-8")
