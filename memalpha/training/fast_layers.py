"""LoRA layers, and on CPUs RMS norms, with their own backward pass: exact formulas, fewer
operations and copies.

Values and gradients equal PEFT's and transformers' up to rounding. Products are in the type of
autocast, else of the base. PEFT multiplies an adapter in float32 there, outside autocast, and keeps
its input in float32. In 16 bits draws, kept log-probabilities and the update all go through here,
so that they round alike. PEFT's code still runs in float32 without a gradient, and for anything but
one active, plain float32 adapter; norms off the CPU are transformers'.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from memalpha.generation.products import plain, product, rounded

NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""Norm classes of transformers that compute ``weight * x / sqrt(mean(x**2) + variance_epsilon)``."""


def use_fast_layers(model: nn.Module) -> None:
    """Give the LoRA linear layers and the norms of ``model`` the forward pass of this module,
    permanently.
    """
    for module in model.modules():
        kind: Any = type(module)
        module.__class__ = _fast_class(kind)


@cache
def _fast_class(kind: Any) -> Any:
    from peft.tuners.lora.layer import Linear

    mixin = FastLoraLinear if kind is Linear else FastRMSNorm if kind.__name__ in NORMS else None
    return (
        type(kind.__name__, (mixin, kind), {"__module__": __name__})
        if mixin and not issubclass(kind, mixin)
        else kind
    )


class FastLoraLinear:
    """Mixin before PEFT's ``Linear``."""

    def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As PEFT's."""
        name = self._single_adapter() if not args and not kwargs else None
        if name is not None:
            base, a, b = self.base_layer, self.lora_A[name].weight, self.lora_B[name].weight
            kind, bias = _product_type(base.weight), base.bias
            used = (
                plain(a, b)
                and (torch.is_grad_enabled() or kind is not torch.float32)
                and not base.weight.requires_grad
            )
            if used and all(_casts(t, kind) for t in (x, base.weight)):
                weight, bias = (
                    rounded(base.weight, kind),
                    bias if bias is None else rounded(bias, kind),
                )
                rows = x.reshape(-1, x.shape[-1]).to(kind)
                y: Tensor = LoraProduct.apply(
                    rows, weight, bias, a.to(kind), b.to(kind), self.scaling[name]
                )  # type: ignore[no-untyped-call]
                return y.view(*x.shape[:-1], -1)
        return super().forward(x, *args, **kwargs)  # type: ignore[misc, no-any-return]

    def _single_adapter(self: Any) -> str | None:
        names = [name for name in self.active_adapters if name in self.lora_A]
        if (
            len(names) != 1
            or self.disable_adapters
            or self.merged
            or type(self.base_layer) is not nn.Linear
        ):
            return None
        name: str = names[0]
        bias = self.base_layer.bias
        frozen = bias is None or not bias.requires_grad
        plain = (
            name not in self.lora_variant
            and not self.lora_bias[name]
            and isinstance(self.lora_dropout[name], nn.Identity)
        )
        return name if plain and frozen else None


def _product_type(weight: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype(weight.device.type) if _autocasts(weight) else weight.dtype


def _casts(tensor: Tensor, kind: torch.dtype) -> bool:
    """Whether a product in ``kind`` takes the tensor; autocast takes float32, too."""
    return plain(tensor, kind=kind) or (_autocasts(tensor) and plain(tensor))


def _autocasts(tensor: Tensor) -> bool:
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


class LoraProduct(torch.autograd.Function):
    """``x W' + bias + s (x A') B'``, with W and bias frozen."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        """Multiply x (tokens, inputs); weight (outputs, inputs), bias (outputs,), a (rank, inputs),
        b (outputs, rank).
        """
        inner = x @ a.t()
        y = product(x, weight, bias).addmm_(inner, b.t(), alpha=scale)
        ctx.save_for_backward(x, weight, a, b, inner)
        ctx.scale = scale
        return y

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor | None, None, None, Tensor | None, Tensor | None, None]:
        """Return the gradients of x, A and B, where needed."""
        x, weight, a, b, inner = ctx.saved_tensors
        of_x, _, _, of_a, of_b, _ = ctx.needs_input_grad
        dx = da = db = None
        # These orientations are the fastest in BLAS for a thin factor.
        if of_x or of_a:
            low = grad @ b.t().contiguous().t()  # (tokens, rank)
        if of_x:
            dx = product(grad, weight, transposed=True).addmm_(low, a, alpha=ctx.scale)
        if of_a:
            da = (low.t() @ x).mul_(ctx.scale)
        if of_b:
            db = (inner.t() @ grad).mul_(ctx.scale).t()
        return dx, None, None, da, db, None


class FastRMSNorm:
    """Mixin before a norm of ``NORMS``, used on a CPU in float32 where a gradient is recorded."""

    def forward(self: Any, x: Tensor) -> Tensor:
        """As transformers'."""
        if x.device.type == "cpu" and torch.is_grad_enabled() and plain(x, self.weight):
            return RMSNormProduct.apply(x, self.weight, self.variance_epsilon)  # type: ignore[no-untyped-call, no-any-return]
        return super().forward(x)  # type: ignore[misc, no-any-return]


class RMSNormProduct(torch.autograd.Function):
    """``weight * x * r`` with r = 1 / sqrt(mean(x**2) + epsilon) over the last axis; under autocast
    in float32, too.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Normalise x (..., features) by weight (features,)."""
        r: Tensor = torch.linalg.vecdot(x, x).unsqueeze(-1).div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        return (x * r).mul_(weight)

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[override]
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
