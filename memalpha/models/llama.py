"""Llama and Qwen2 in plain PyTorch, to use float32 weights on a CPU.

transformers' own model code brings torch._dynamo, torch.distributed and accelerate: more than a
second for a process that answers one question. Here are the same steps, so the logits are equal.
Weights are those of the file, read from it as they are needed. An adapter is never merged into
them: any number of adapters, in any threads, use one base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

from memalpha.generation.products import fits, product_once, restored
from memalpha.types import JsonObject

if TYPE_CHECKING:
    from transformers.cache_utils import Cache

WEIGHTS = "model.safetensors"
_MODELS = ("llama", "qwen2")
# fields of config.json: those used here, those with one value alone, those without effect
_USED = (
    "eos_token_id head_dim hidden_size intermediate_size max_position_embeddings model_type "
    "num_attention_heads num_hidden_layers num_key_value_heads pad_token_id rms_norm_eps "
    "rope_parameters tie_word_embeddings vocab_size"
).split()
_FIXED: JsonObject = {
    "attention_bias": False,
    "hidden_act": "silu",
    "mlp_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
}
_WITHOUT_EFFECT = (
    "architectures attention_dropout bos_token_id dtype initializer_range layer_types "
    "max_window_layers pretraining_tp transformers_version unk_token_id use_cache"
).split()
# fields of adapter_config.json that plain LoRA may set; all others are then empty or false
_OF_LORA = (
    "base_model_name_or_path bias inference_mode init_lora_weights lora_alpha lora_dropout "
    "megatron_core peft_type peft_version qalora_group_size r revision target_modules task_type"
).split()
_IN_PEFT = "base_model.model."


class Config(SimpleNamespace):
    """The used fields of a model's config.json."""

    _attn_implementation = "sdpa"

    def get_text_config(self) -> Config:
        """Return itself: the model reads text alone."""
        return self


class Matrices(NamedTuple):
    """LoRA of a linear layer: ``down`` (rank, inputs), and ``up`` (rank, outputs) scaled."""

    down: Tensor
    up: Tensor


Lora = Mapping[nn.Module, Matrices]
"""An adapter: the matrices of the linear layers that it changes."""


class Llama(nn.Module):
    """A causal language model; its modules have transformers' names.

    ``weights`` are float32, by transformers' names. KeyError if one is missing.
    """

    def __init__(self, config: Config, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.generation_config = SimpleNamespace(eos_token_id=config.eos_token_id)
        self.lora: Lora = {}
        self.model: Any = nn.Module()
        self.model.embed_tokens = _with_weights(nn.Module(), weights, "model.embed_tokens")
        self.model.norm = _with_weights(nn.Module(), weights, "model.norm")
        self.model.layers = nn.ModuleList(
            _layer(weights, f"model.layers.{index}") for index in range(config.num_hidden_layers)
        )
        tied = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
        self.lm_head = _linear(weights, tied)
        linears = [layer for layer in self.modules() if isinstance(layer, nn.Linear)]
        self._through_onednn = {layer for layer in linears if fits(layer.weight)}
        self._head_size = config.head_dim or config.hidden_size // config.num_attention_heads
        even = torch.arange(0, self._head_size, 2, dtype=torch.float)
        self._frequencies = 1.0 / (config.rope_parameters["rope_theta"] ** (even / self._head_size))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.lm_head.weight.device

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: Cache,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        use_cache: bool = True,
    ) -> SimpleNamespace:
        """Return ``logits`` (rows, kept tokens, vocabulary), and extend the cache.

        ``input_ids`` (rows, tokens); ``attention_mask`` (rows, cached and new tokens) is 0 at
        holes; ``logits_to_keep`` is a number of last tokens (0: all), or positions: (kept,) of all
        rows or (rows, kept).
        """
        past = past_key_values.get_seq_length()
        tokens = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(past, past + tokens)[None]
        x = embedding(input_ids, self.model.embed_tokens.weight)
        rotation = self._rotation(position_ids)
        mask = _mask(attention_mask, past, tokens)
        for index, layer in enumerate(self.model.layers):
            normed = self._norm(layer.input_layernorm, x)
            x = x + self._attention(layer.self_attn, normed, rotation, mask, past_key_values, index)
            x = x + self._feed_forward(layer.mlp, self._norm(layer.post_attention_layernorm, x))
        x = self._norm(self.model.norm, x)
        if isinstance(logits_to_keep, int):
            x = x[:, -logits_to_keep:]
        elif logits_to_keep.ndim == 2:
            x = torch.take_along_dim(x, logits_to_keep[..., None], dim=1)
        else:
            x = x[:, logits_to_keep]
        return SimpleNamespace(logits=self._linear(self.lm_head, x))

    def _linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        if layer in self._through_onednn and "forward" not in vars(layer):  # of ``fast_linears``
            y = product_once(x, layer.weight, layer.bias)
        else:
            y = layer(x)
        matrices = self.lora.get(layer)
        if matrices is not None:
            inner = linear(x, matrices.down).flatten(0, 1)
            y.view(-1, y.shape[-1]).addmm_(inner, matrices.up)
        return y

    def _norm(self, layer: nn.Module, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        weight: Any = layer.weight
        normed: Tensor = weight * (x * torch.rsqrt(variance + self.config.rms_norm_eps))
        return normed

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (rows, 1, tokens, head size)."""
        angles = positions[:, None, :, None].float() * self._frequencies
        both = torch.cat((angles, angles), dim=-1)
        return both.cos(), both.sin()

    def _attention(
        self,
        layer: Any,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Cache,
        index: int,
    ) -> Tensor:
        rows, tokens, _ = x.shape
        heads = (rows, tokens, -1, self._head_size)
        query = _rotated(self._linear(layer.q_proj, x).view(heads).transpose(1, 2), *rotation)
        key = _rotated(self._linear(layer.k_proj, x).view(heads).transpose(1, 2), *rotation)
        value = self._linear(layer.v_proj, x).view(heads).transpose(1, 2)
        key, value = cache.update(key, value, index)
        group = query.shape[1] // key.shape[1]  # query heads of one key
        if mask is not None and tokens == 1:
            query = query.reshape(rows, -1, group, self._head_size)
        elif mask is not None:
            key = key.repeat_interleave(group, dim=1)
            value = value.repeat_interleave(group, dim=1)
        seen = scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            is_causal=mask is None and tokens > 1,
            scale=self._head_size**-0.5,
            enable_gqa=mask is None and group > 1,
        )
        if mask is not None and tokens == 1:
            seen = seen.reshape(rows, -1, 1, self._head_size)
        return self._linear(layer.o_proj, seen.transpose(1, 2).reshape(rows, tokens, -1))

    def _feed_forward(self, layer: Any, x: Tensor) -> Tensor:
        gate = silu(self._linear(layer.gate_proj, x))
        return self._linear(layer.down_proj, gate * self._linear(layer.up_proj, x))


class AdaptedLlama(Llama):
    """A base with an adapter, on the modules and weights of the base."""

    def __init__(self, base: Llama, lora: Lora) -> None:
        vars(self).update(vars(base))
        self.lora = lora

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Compute the base alone in the block."""
        with restored([self], "lora"):
            self.lora = {}
            yield


def _mask(attention_mask: Tensor | None, past: int, tokens: int) -> Tensor | None:
    """Which slots a token sees, bool (rows or 1, 1, tokens, slots); None: all up to its own."""
    whole = attention_mask is None or bool(attention_mask.all())
    if whole and (tokens == 1 or not past):
        return None
    slots = torch.arange(past + tokens)
    earlier = slots <= slots[past:, None]
    return (
        earlier[None, None]
        if attention_mask is None
        else (earlier & attention_mask[:, None, None].bool())
    )


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


# ------------------------------------------------------------------------------------------------
# from files


def load_llama(folder: Path) -> Llama | None:
    """Load a model of a folder; None if transformers has to: another kind, or several files.

    OSError or SafetensorError if the weights cannot be read.
    """
    from safetensors.torch import load_file

    from memalpha.files import read_object

    path = folder / WEIGHTS
    files = [folder / "config.json", folder / "generation_config.json"]
    fields, of_generation = (read_object(file) if file.is_file() else {} for file in files)
    config = _config(fields)
    if config is None or not path.is_file():
        return None
    weights = {name: weight.float() for name, weight in load_file(path).items()}
    config._name_or_path = str(folder)
    config.eos_token_id = of_generation.get("eos_token_id", config.eos_token_id)
    try:
        model = Llama(config, weights).eval()
    except KeyError:
        return None
    unused = weights.keys() - {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return None if unused else model


def read_lora(model: Llama, fields: JsonObject, path: Path) -> Lora | None:
    """Read an adapter's matrices, ``fields`` being its configuration; None if peft has to.

    OSError or SafetensorError if they cannot be read.
    """
    from safetensors.torch import load_file

    weights = load_file(path)
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    ends = (".lora_A.weight", ".lora_B.weight")
    names = {name.removesuffix(end) for name in weights for end in ends if name.endswith(end)}
    plain = (
        fields.get("bias") == "none"
        and not any(value for name, value in fields.items() if name not in _OF_LORA)
        and weights.keys() == {name + end for name in names for end in ends}
        and {name.removeprefix(_IN_PEFT) for name in names} <= layers.keys()
    )
    if not plain:
        return None
    scaling = fields["lora_alpha"] / fields["r"]
    lora: dict[nn.Module, Matrices] = {}
    for name in names:
        down, up = (weights[name + end].float() for end in ends)
        lora[layers[name.removeprefix(_IN_PEFT)]] = Matrices(down, (up * scaling).t())
    return lora


def _config(fields: JsonObject) -> Config | None:
    known = {*_USED, *_FIXED, *_WITHOUT_EFFECT}
    used: dict[str, Any] = {name: fields.get(name) for name in _USED}
    rope = used["rope_parameters"] or {}
    may_lack = {"eos_token_id", "head_dim", "pad_token_id"}
    kinds = set(fields.get("layer_types") or ())
    ours = (
        used["model_type"] in _MODELS
        and known.issuperset(fields)
        and all(name in may_lack or value is not None for name, value in used.items())
        and all(fields.get(name, value) == value for name, value in _FIXED.items())
        and set(rope) == {"rope_theta", "rope_type"}
        and rope["rope_type"] == "default"
        and kinds <= {"full_attention"}
    )
    if not ours:
        return None
    if used["model_type"] == "llama" and used["head_dim"] is None:
        used["head_dim"] = used["hidden_size"] // used["num_attention_heads"]
    return Config(**used)


def _layer(weights: Mapping[str, Tensor], name: str) -> nn.Module:
    layer = nn.Module()
    layer.self_attn = nn.Module()
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(layer.self_attn, part, _linear(weights, f"{name}.self_attn.{part}"))
    layer.mlp = nn.Module()
    for part in ("gate_proj", "up_proj", "down_proj"):
        setattr(layer.mlp, part, _linear(weights, f"{name}.mlp.{part}"))
    for part in ("input_layernorm", "post_attention_layernorm"):
        setattr(layer, part, _with_weights(nn.Module(), weights, f"{name}.{part}"))
    return layer


def _linear(weights: Mapping[str, Tensor], name: str) -> nn.Linear:
    outputs, inputs = weights[f"{name}.weight"].shape
    layer = nn.Linear(inputs, outputs, f"{name}.bias" in weights, device="meta")
    _with_weights(layer, weights, name)
    return layer


def _with_weights(layer: nn.Module, weights: Mapping[str, Tensor], name: str) -> nn.Module:
    for part in ("weight", "bias"):
        if f"{name}.{part}" in weights:
            parameter = nn.Parameter(weights[f"{name}.{part}"], requires_grad=False)
            setattr(layer, part, parameter)
    return layer
