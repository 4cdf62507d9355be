"""Fold LoRA adapters into the base weights for the time of a block, and leave the weights bitwise as they were.

PEFT's own merge and unmerge add and subtract the same numbers, which leaves rounding errors in the base weights after each round.
Here the original tensors are kept and put back, so nothing drifts, also when the block raises. The price is a second copy of the
adapted weights while the block runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.nn import Parameter


@contextmanager
def merged_lora(model: nn.Module) -> Iterator[None]:
    """Merge the active LoRA adapters of ``model`` inside the block; a model without adapters is left alone.

    Layers whose base weights are not plain floating-point tensors (quantised ones), or whose adapters are merged already or
    switched off, are left as they are: they run as without this block. The model must not be trained or saved inside it.
    """
    originals: list[tuple[Parameter, Tensor]] = []
    touched: list[Any] = []
    try:
        for layer in _mergeable(model):
            originals.extend((parameter, parameter.data) for parameter in layer.get_base_layer().parameters(recurse=False))
            touched.append(layer)
            _merge(layer)
        yield
    finally:
        for parameter, tensor in originals:
            parameter.data = tensor
        for layer in touched:
            layer.merged_adapters.clear()


def _merge(layer: Any) -> None:
    """Merge the active adapters of a layer: plain ones in one pass over the weight, any other by PEFT.

    Raises:
        ValueError: An adapter holds a number that is not finite.
    """
    base, names = layer.get_base_layer(), [name for name in layer.active_adapters if name in layer.lora_A]
    if not all(_is_plain(layer, name) for name in names):
        layer.merge(safe_merge=True)
        return
    for name in names:
        a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
        base.weight.data = torch.addmm(base.weight.data, b.data, a.data, alpha=layer.scaling[name])
        layer.merged_adapters.append(name)


def _is_plain(layer: Any, name: str) -> bool:
    """Whether merging is ``weight + scaling * B A`` and all three are finite float32 matrices (16-bit ones PEFT may widen)."""
    from peft.tuners.lora.layer import Linear

    if not isinstance(layer, Linear) or layer.fan_in_fan_out or name in layer.lora_variant or layer.lora_bias[name]:
        return False
    factors = layer.lora_A[name].weight, layer.lora_B[name].weight
    return (
        type(layer.get_base_layer()) is nn.Linear
        and all(weight.dtype is torch.float32 for weight in (layer.get_base_layer().weight, *factors))
        and all(bool(weight.isfinite().all()) for weight in factors)
    )


def _mergeable(model: nn.Module) -> list[Any]:
    from peft.tuners.lora import LoraLayer

    def plain(layer: Any) -> bool:
        return all(parameter.is_floating_point() for parameter in layer.get_base_layer().parameters(recurse=False))

    return [
        module
        for module in model.modules()
        if isinstance(module, LoraLayer)
        and hasattr(module, "merge")
        and not module.merged
        and not module.disable_adapters
        and plain(module)
    ]
