"""Add LoRA adapters to the base weights during a block, and restore the weights exactly.

PEFT's own merge and unmerge leave rounding errors. Here the original tensors are kept and put back,
also if the block raises. The cost is a second copy of the adapted weights.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from memalpha.errors import MemAlphaError
from memalpha.generation.products import Products, using


def exact(model: nn.Module) -> bool:
    """Whether adapters can be merged: all weights are float32. A sum in 16 bits rounds most of an
    adapter's effect away.
    """
    return all(parameter.dtype is torch.float32 for parameter in model.parameters())


@contextmanager
def merged_lora(model: nn.Module) -> Iterator[None]:
    """Merge active plain LoRA adapters inside the block; do not train or save the model there.

    PEFT computes the others (DoRA, biases, quantised or 16-bit layers) as outside. What is made of
    the merged weights (``products``) lasts as long as they do. MemAlphaError if an adapter has
    values that are not finite.
    """
    adapters: dict[Any, list[str]] = {each: _plain_adapters(each) for each in model.modules()}
    layers = [layer for layer, names in adapters.items() if names]
    weights = [layer.get_base_layer().weight for layer in layers]
    with (
        restored(weights, "data"),
        restored(layers, "merged_adapters"),
        using(Products()) if layers else nullcontext(),
    ):
        for layer, weight in zip(layers, weights, strict=True):
            layer.merged_adapters = adapters[layer]
            for name in adapters[layer]:
                a, b = layer.lora_A[name].weight.data, layer.lora_B[name].weight.data
                MemAlphaError.raise_if(
                    not (a.isfinite().all() and b.isfinite().all()),
                    f"the adapter {name!r} has weights that are not finite",
                )
                weight.data = torch.addmm(weight.data, b, a, alpha=layer.scaling[name])
        yield


def _plain_adapters(layer: Any) -> list[str]:
    """Names of a layer's active adapters; none if it is not float32 and an ordinary LoRA layer."""
    from peft.tuners.lora.layer import Linear

    if not isinstance(layer, Linear) or layer.merged or layer.disable_adapters:
        return []
    names = [name for name in layer.active_adapters if name in layer.lora_A]
    ordinary = type(layer.get_base_layer()) is nn.Linear and not layer.fan_in_fan_out
    special = any(name in layer.lora_variant or layer.lora_bias[name] for name in names)
    return names if ordinary and not special and exact(layer) else []


@contextmanager
def restored(items: Iterable[Any], *names: str) -> Iterator[None]:
    """Put these attributes of the items back after the block, also if it raises.

    For ``requires_grad``: PEFT's switching of adapters makes all weights of the active one
    trainable.
    """
    before = [(item, name, getattr(item, name)) for item in items for name in names]
    try:
        yield
    finally:
        for item, name, value in before:
            setattr(item, name, value)
