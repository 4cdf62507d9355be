"""Changes a loaded model before it draws or trains, once and in one place.

:func:`prepare_policy` changes layers to faster ones with an exact gradient, chooses the attention
(attention.py), and freezes what does not train. Nothing changes a model later, but for what
transformers' Trainer does at its start (gradient checkpointing, the wrapper of several processes).
"""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, rms_norm

from memalpha.errors import InputError
from memalpha.generation.graphs import PLAIN_MODELS
from memalpha.generation.products import multiply, product, round_weight, with_plain_products
from memalpha.generation.small import NoCopyError, architecture, ask_copy
from memalpha.update.attention import base_model, share_prefixes
from memalpha.update.trial import Trial, try_rows

# ------------------------------------------------------------------------------------------------
# what is done to a model

_logger = logging.getLogger(__name__)

BACKEND = "inductor"  # of torch.compile

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""Norm classes of transformers that compute ``weight * x / sqrt(mean(x**2) + epsilon)``."""


def prepare_policy(
    model: nn.Module, *, trained: bool = True, top_layers: int = 0, compiled: bool = False
) -> None:
    """Prepare a model, plain or inside PEFT, in place; again does no harm.

    ``trained``: rows that share a prefix are computed together where a small copy shows that its
    layers allow that, else each by itself, with a warning; InputError if a copy shows that the
    update is wrong. ``top_layers``: only adapters of that many upper layers
    train (0 = all); InputError if the model has fewer. ``compiled``: packed rows go through layers
    compiled by ``torch.compile``; InputError for a model whose layers are not known.
    """
    base = base_model(model)
    speed_up(model)
    if top_layers:
        freeze_lower_layers(model, top_layers)
    if trained:
        trial = try_update(base)
        if trial.refused:
            raise InputError(
                f"{architecture(base).__name__} cannot be trained: {trial.refused}",
                expected="a causal language model of token ids",
                fix="choose another base model",
            )
        reason = trial.alone or share_prefixes(base)
        if reason:
            _logger.warning("%s: the update computes every row by itself, which is slower", reason)
    if compiled:
        compile_layers(base)


def speed_up(model: nn.Module) -> None:
    """Change layers to faster ones, in place."""
    module: Any
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):  # bitsandbytes packs weights in drawing,
            module.support_avx512bf16_for_cpu = False  # and packed ones pass no gradient on
        module.__class__ = _fast_class(module)


def try_update(base: Any) -> Trial:
    """Return how a transformers model computes rows, asked of a small copy."""
    try:
        return ask_copy(base, _try_copy)
    except NoCopyError as error:
        return Trial(alone=str(error))


def _try_copy(copy: Any) -> Trial:
    speed_up(copy)
    return try_rows(copy)


def freeze_lower_layers(model: Any, top: int) -> None:
    """Train the adapters of the ``top`` upper layers only; InputError if there are fewer, or if
    layers are named otherwise.
    """
    count = int(model.config.num_hidden_layers)
    if not 0 < top <= count:
        raise InputError(
            f"train_layers is {top}",
            expected=f"a number from 1 to {count}, the layers of the model, or 0 for all",
        )
    known = any(".layers." in name for name, _ in model.named_parameters())
    if not known:
        raise InputError(
            f"train_layers is {top}, but the layers of "
            f"{type(base_model(model)).__name__} are unknown",
            expected="0, which trains all layers",
        )
    for name, parameter in model.named_parameters():
        _, is_layer, place = name.partition(".layers.")
        if is_layer and int(place.split(".")[0]) < count - top:
            parameter.requires_grad_(False)


def compile_layers(base: Any) -> None:
    """Let a transformers model compute packed rows by compiled layers."""
    if base.config.model_type not in PLAIN_MODELS:
        raise InputError(
            f"compile is true, but the model is of type {base.config.model_type!r}",
            expected=f"one of {', '.join(PLAIN_MODELS)}",
            fix="set compile: false",
        )
    for layer in base.model.layers:
        kind: Any = type(layer)
        layer.__class__ = _compiled_class(kind)


@cache
def _compiled_class(kind: Any) -> Any:
    if issubclass(kind, CompiledLayer):
        return kind
    # the number of tokens changes from pack to pack
    forward = torch.compile(kind.forward, dynamic=True, backend=BACKEND)
    more = {"compiled_forward": forward}
    return type(kind.__name__ + "Compiled", (CompiledLayer, kind), more)


class CompiledLayer:
    """Mixin before a decoder layer: compiled for packed rows, as it is for all else.

    Between its parts the attention runs as it is: it depends on the lengths of a pack's rows.
    """

    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return what transformers' layer does."""
        if kwargs.get("prefix_layout") is None:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        trains = any(parameter.requires_grad for parameter in self.parameters())
        if torch.is_grad_enabled() and trains and not hidden_states.requires_grad:
            # as in the layers above, so that one compiled form serves all
            hidden_states = hidden_states.detach().requires_grad_()
        return self.compiled_forward(hidden_states, *args, **kwargs)


def _fast_class(module: nn.Module) -> Any:
    kind: Any = type(module)
    if kind is Linear and _is_simple(module):
        return FastLoraLinear
    return _fast_norm(kind) if kind.__name__ in NORMS else kind


def _is_simple(layer: Any) -> bool:
    """Whether a LoRA layer is ``x W' + s (x A') B'`` with a frozen, unquantised W."""
    base = layer.base_layer
    frozen = not any(parameter.requires_grad for parameter in base.parameters())
    drops = any(not isinstance(dropout, nn.Identity) for dropout in layer.lora_dropout.values())
    other = drops or layer.lora_variant or any(layer.lora_bias.values())
    return type(base) is nn.Linear and frozen and not other


class FastLoraLinear(Linear):  # type: ignore[misc]
    """PEFT's layer with fewer operations and copies; equal up to rounding.

    Products are in the type of autocast, else of the base; PEFT multiplies an adapter in float32
    there. In 16 bits draws, kept log-probabilities and the update all go through here, so that
    they round alike, unless layers are compiled. PEFT's code still runs in float32 without a
    gradient, and for anything but one active, plain float32 adapter.
    """

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return what PEFT's layer does, x (..., inputs) to (..., outputs)."""
        names = [name for name in self.active_adapters if name in self.lora_A]
        if torch.compiler.is_compiling():
            return self._plainly(x, names)
        if args or kwargs or len(names) != 1 or self.disable_adapters or self.merged:
            return super().forward(x, *args, **kwargs)  # type: ignore[no-any-return]
        base = self.base_layer
        a = self.lora_A[names[0]].weight
        b = self.lora_B[names[0]].weight
        kind = _product_type(base.weight)
        fits = with_plain_products(a, b) and _casts(x, kind) and _casts(base.weight, kind)
        if not fits or not (torch.is_grad_enabled() or kind is not torch.float32):
            return super().forward(x)  # type: ignore[no-any-return]
        if not torch.is_grad_enabled():
            a, b = round_weight(a, kind), round_weight(b, kind)  # once a call, not at each token
        bias = None if base.bias is None else round_weight(base.bias, kind)
        y: Tensor = LoraProduct.apply(  # type: ignore[no-untyped-call]
            x.reshape(-1, x.shape[-1]).to(kind),
            round_weight(base.weight, kind),
            bias,
            a.to(kind),
            b.to(kind),
            self.scaling[names[0]],
        )
        return y.view(*x.shape[:-1], -1)

    def _plainly(self, x: Tensor, names: Sequence[str]) -> Tensor:
        """Compute the same by torch's own operations, which a compiler sees through."""
        base = self.base_layer
        kind = _product_type(base.weight)
        x = x.to(kind)
        y = linear(x, base.weight.to(kind), None if base.bias is None else base.bias.to(kind))
        for name in [] if self.disable_adapters or self.merged else names:
            inner = linear(x, self.lora_A[name].weight.to(kind))
            y = y + self.scaling[name] * linear(inner, self.lora_B[name].weight.to(kind))
        return y


def _product_type(weight: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype(weight.device.type) if _autocasts(weight) else weight.dtype


def _casts(tensor: Tensor, kind: torch.dtype) -> bool:
    """Whether a product in ``kind`` takes the tensor; autocast takes float32, too."""
    return with_plain_products(tensor, kind=kind) or (
        _autocasts(tensor) and with_plain_products(tensor)
    )


def _autocasts(tensor: Tensor) -> bool:
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


class LoraProduct(torch.autograd.Function):
    """``x W' + bias + s (x A') B'``, with W and bias frozen."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        """Multiply x (tokens, inputs) by weight (outputs, inputs), a (rank, inputs) and b
        (outputs, rank).
        """
        inner = x @ a.t()
        y = product(x, weight, bias).addmm_(inner, b.t(), alpha=scale)
        ctx.save_for_backward(x, weight, a, b, inner)
        ctx.scale = scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, A and B, where needed."""
        x, weight, a, b, inner = ctx.saved_tensors
        of_x, _, _, of_a, of_b, _ = ctx.needs_input_grad
        dx = da = db = None
        # These orientations are the fastest for a thin factor, sums over tokens in oneDNN.
        if of_x or of_a:
            low = grad @ b.t().contiguous().t()  # (tokens, rank)
        if of_x:
            dx = product(grad, weight, transposed=True).addmm_(low, a, alpha=ctx.scale)
        if of_a:
            da = multiply(low.t(), x.t()).mul_(ctx.scale)
        if of_b:
            db = multiply(inner.t(), grad.t()).mul_(ctx.scale).t()
        return dx, None, None, da, db, None


@cache
def _fast_norm(kind: type) -> type:
    return type(kind.__name__ + "Fast", (FastRMSNorm, kind), {})


class FastRMSNorm:
    """Mixin before a norm of ``NORMS``: torch's one kernel on CUDA, which rounds once; its own
    backward pass on a CPU in float32.
    """

    def forward(self: Any, x: Tensor) -> Tensor:
        """Return what transformers' norm does, whose own code runs for a compiler, and on CPUs in
        16 bits or without a gradient.
        """
        weight = self.weight
        eager = not torch.compiler.is_compiling()
        if eager and x.device.type == "cuda" and with_plain_products(x, weight, kind=x.dtype):
            with torch.autocast(x.device.type, enabled=False):  # which would return float32
                return rms_norm(x, weight.shape, weight, self.variance_epsilon)
        if (
            eager
            and x.device.type == "cpu"
            and torch.is_grad_enabled()
            and with_plain_products(x, weight)
        ):
            y: Tensor = RMSNormProduct.apply(  # type: ignore[no-untyped-call]
                x, weight, self.variance_epsilon
            )
            return y
        return super().forward(x)  # type: ignore[misc, no-any-return]


class RMSNormProduct(torch.autograd.Function):
    """``weight * x * r`` with r = 1 / sqrt(mean(x**2) + epsilon) over the last axis, in float32,
    under autocast, too.
    """

    @staticmethod
    @torch.amp.custom_fwd(  # type: ignore[untyped-decorator]
        device_type="cpu", cast_inputs=torch.float32
    )
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Normalise x (..., features) by weight (features,)."""
        r: Tensor = torch.linalg.vecdot(x, x).unsqueeze(-1).div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight)

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """With g = weight * grad: dx = r g - x r**3 mean(g x), and dweight = sum of grad x r."""
        x, weight, r = ctx.saved_tensors
        of_x, of_weight, _ = ctx.needs_input_grad
        dx = dweight = None
        if of_weight:
            dweight = (grad * x).mul_(r).flatten(0, -2).sum(0)
        if of_x:
            dx = grad * weight
            share = torch.linalg.vecdot(dx, x).unsqueeze(-1).mul_(r).mul_(r).div_(-x.shape[-1])
            dx.addcmul_(x, share).mul_(r)
        return dx, dweight, None
