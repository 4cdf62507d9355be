"""A small random copy of a model: same architecture and switches, float32, on the CPU.

What is computed from what does not depend on sizes, so that a question about a model of any size is
asked of its copy, in a moment and without its weights.
"""

import json
import random
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import gcd
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.utils import logging

from memalpha.errors import InputError
from memalpha.types import JsonObject

VOCABULARY = 64
HEAD = 16
"""Size of a head to which sizes are brought down, if they can be divided so."""
ATTENTION_HEADS = 4
LAYERS = 2
"""Layers, unless it takes more until each kind has come."""
EXPERTS = 16
WINDOW = 8
"""Tokens of a sliding window or of a chunk."""
SCALE = 0.15
"""Standard deviation of weights: large enough that all that is computed shows in the logits."""
PARAMETERS = 2**24
"""Most parameters of a copy."""

_LAYERS = re.compile(r"((num|n)_)?((hidden|decoder|encoder|main)_)?(layers?|blocks)$")
_LAYER_KINDS = ("layer_types", "layers_block_type", "attention_layers", "mlp_layer_types")
_HEADS = re.compile(
    r"(.*_)?(num|n)_((attention|key_value|kv|query)_)?(heads?|head_kv)$|.*_heads$|.*n_groups$"
)
_SIZE = re.compile(
    r".*(hidden_size|intermediate|_dim$|^dim$|d_model|d_ff$|dff$|n_embd|n_inner|_rank$|_width$"
    r"|d_inner|d_head|d_ssm|_ffn|head_size|embedding_size|embed_size|kv_channels)"
)
_NO_SIZE = re.compile(r"num_|.*(multiplier|layer|_bits|per_|factor|ratio|kernel|conv_)")
_OF_A_HEAD = re.compile(r".*(head_dim|head_size|d_head|_rank|rope|nope|rotary|kv_channels)")
_INNER = re.compile(r".*(intermediate|_ffn)")
_HEAD_SIZE = re.compile(r".*(head_dim|head_size|d_head|rotary_dim)$")
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "emb_dim")
_PLACES = re.compile(r".*layer.*(indices|ids|idxs?)$")
_CHANCE = re.compile(r".*(drop|jitter)")
_MOST = (
    (re.compile(r".*token_(id|index)$"), VOCABULARY - 1),
    (re.compile(r".*vocab"), VOCABULARY),
    (re.compile(r"(?!.*(layers|pattern|ids|num_)).*(window|chunk|local_attention$)"), WINDOW),
    (re.compile(r".*(n|num|num_local|n_routed|num_routed|moe_num)_experts$"), EXPERTS),
    (re.compile(r"(?!index).*(experts_per_tok|top_?k$|moe_k$|experts_per_token)"), 2),
)
"""The most that a copy has of what is named so."""


class NoCopyError(Exception):
    """No small copy can be made, or it computes nothing."""


CopyAnswer = TypeVar("CopyAnswer")
_answers: dict[Hashable, Any] = {}


def ask_copy(base: Any, question: Callable[[Any], CopyAnswer]) -> CopyAnswer:
    """Return what a question of a small copy of a transformers model answers, once for each
    architecture in a process; random numbers of the process stay as they are.

    NoCopyError if there is no copy; InputError if there is none, and the model itself computes
    nothing of token ids.
    """
    kind = architecture(base)
    try:
        config = small_config(base.config)
        key = (question, kind, json.dumps(config.to_dict(), sort_keys=True, default=str))
        if key in _answers:
            return cast("CopyAnswer", _answers[key])
        with keeping_random_state():
            copy = small_model(kind, config)
            alone(copy, range(3, 3 + WINDOW))
    except Exception as error:
        _check_forward(base)
        raise NoCopyError(
            f"no small copy of {kind.__name__} computes ({reason_of(error)})"
        ) from error
    with keeping_random_state():
        answer = _answers[key] = question(copy)
    return answer


def small_copy(base: Any) -> Any:
    """Return a small copy of a transformers model; random numbers of the process stay as they are.
    Raises what transformers does if it cannot be made.
    """
    with keeping_random_state():
        return small_model(architecture(base), small_config(base.config))


def _check_forward(base: Any) -> None:
    if any(is_apart(parameter) for parameter in base.parameters()):
        return
    try:
        with torch.no_grad():
            alone(base, range(3, 3 + WINDOW))
    except Exception as error:
        raise InputError(
            f"{architecture(base).__name__} computes nothing of token ids ({reason_of(error)})",
            expected="a causal language model",
            fix="choose another base model",
        ) from error


def is_apart(parameter: nn.Parameter) -> bool:
    """Whether the values of a parameter are not all here: sharded, or not loaded yet."""
    return parameter.is_meta or hasattr(parameter, "ds_id") or hasattr(parameter, "placements")


def architecture(base: Any) -> Any:
    """Return the class of a transformers model, below those that shard it."""
    kinds = type(base).__mro__
    return next(kind for kind in kinds if "fsdp" not in kind.__module__)


def small_model(kind: Any, config: PretrainedConfig) -> Any:
    """Return a model with random weights that are large enough for all of it to show in the logits,
    in float32, on the CPU; ValueError if it is not small.
    """
    with torch.device("cpu"):
        model = kind(config).float().eval()
    if sum(parameter.numel() for parameter in model.parameters()) > PARAMETERS:
        raise ValueError(f"the copy of {kind.__name__} is too large")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=SCALE)
    return model


def alone(model: Any, ids: Sequence[int]) -> Tensor:
    """Return the logits of transformers' own forward of some ids (L, vocabulary)."""
    output = model(input_ids=torch.tensor([[*ids]], device=model.device), use_cache=False)
    logits: Tensor = output.logits[0]
    return logits.float()


def reason_of(error: Exception) -> str:
    """Return the first line of an error, and its type."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:200]}"


@contextmanager
def keeping_random_state() -> Iterator[None]:
    """Let the random numbers of the process be, whatever is drawn within, and the user at peace."""
    state = random.getstate()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        try:
            yield
        finally:
            random.setstate(state)
            logging.set_verbosity(verbosity)


def small_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration of a small copy."""
    values = config.to_dict()
    kinds = {name: getattr(config, name, None) for name in _LAYER_KINDS}
    for name in ("quantization_config", "torch_dtype", "dtype"):
        values.pop(name, None)
    _shrink(values, kinds)
    return type(config).from_dict(values)


def _shrink(values: JsonObject, kinds: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict) and name != "per_layer_config":
            _shrink(value, value)
    layers = next((v for name, v in values.items() if _counts(v) and _LAYERS.match(name)), 0)
    cover = _cover(layers, kinds)
    few = max(min(layers, LAYERS), cover)
    if values.get("num_kv_shared_layers"):
        few = min(2 * cover, layers)
        values["num_kv_shared_layers"] = few - cover
    size, share = _divisors(values)
    values.update(_of_pairs("", values, size))
    for name, value in values.items():
        if _counts(value):
            values[name] = few if _LAYERS.match(name) else _smaller(name, value, size, share)
        elif name == "per_layer_config" and isinstance(value, dict):
            values[name] = {i: each for i, each in value.items() if int(i) < few}
        elif isinstance(value, list) and layers and len(value) == layers:
            values[name] = [
                _smaller(name, each, size, share) if _counts(each) else each for each in value[:few]
            ]
        elif isinstance(value, list) and _PLACES.match(name):
            values[name] = [each for each in value if each < few]
        elif isinstance(value, float) and _CHANCE.match(name):
            values[name] = 0.0


def _smaller(name: str, value: int, size: int, share: int) -> int:
    """Return a number of a configuration as a copy has it."""
    most = next((most for pattern, most in _MOST if pattern.match(name)), value)
    if most < value:
        return most
    if _HEADS.match(name):
        return value // share if value % share == 0 else value
    if not _SIZE.match(name) or _NO_SIZE.match(name):
        return value
    if _INNER.match(name):  # nothing else depends on it, but kernels want multiples of 8
        return -(-value // (8 * size * share)) * 8
    divisor = size if _OF_A_HEAD.match(name) or value % (size * share) else size * share
    return value // divisor if value % divisor == 0 else value


def _of_pairs(name: str, value: Any, size: int) -> Any:
    """Return a field of a rotation as a copy has it: some hold a number for each pair of a head."""
    if isinstance(value, dict):
        return {key: _of_pairs(key, each, size) for key, each in value.items()}
    pairs = isinstance(value, list) and str(name).endswith("_factor")
    return value[: len(value) // size] if pairs else value


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _cover(layers: int, kinds: Mapping[str, Any]) -> int:
    """Return the least number of layers among which each kind is."""
    cover = 1
    for name in _LAYER_KINDS:
        value = kinds.get(name)
        if isinstance(value, (list, tuple)) and len(value) == layers:
            cover = max(cover, *(value.index(kind) + 1 for kind in value))
    return cover


def _divisors(values: Mapping[str, Any]) -> tuple[int, int]:
    """Return by what the sizes of heads, and by what their numbers are divided."""
    numbers = {name: value for name, value in values.items() if _counts(value)}
    width = next((numbers[name] for name in _WIDTHS if name in numbers), 0)
    heads = [value for name, value in numbers.items() if _HEADS.match(name) and value > 1]
    sizes = [value for name, value in numbers.items() if _HEAD_SIZE.match(name)]
    if not width:
        return 1, 1
    head = gcd(*sizes) if sizes else width // max(heads, default=1)
    rope = values.get("rope_parameters") or {}
    rotated = int(head * (rope.get("partial_rotary_factor") or values.get("rotary_pct") or 1))
    size = share = 1
    while (
        gcd(head, rotated) % (4 * size) == 0
        and head >= 2 * size * HEAD
        and width % (16 * size) == 0
    ):
        size *= 2
    count = gcd(*heads) if heads else 1
    most = max(heads, default=1)
    while (
        count % (2 * share) == 0
        and most >= 2 * share * ATTENTION_HEADS
        and width % (16 * size * share) == 0
    ):
        share *= 2
    return size, share
