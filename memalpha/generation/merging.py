"""Merge LoRA adapters into the base weights during a block, and restore the weights exactly.

PEFT's own merge and unmerge leave rounding errors. Here the original tensors are kept and put back,
also if the block raises. The cost is a second copy of the adapted weights.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from memalpha.generation.products import Products, using


def exact(model: nn.Module) -> bool:
    """Whether adapters can be merged: all weights are float32. A sum in 16 bits rounds most of an
    adapter's effect away.
    """
    return all(parameter.dtype is torch.float32 for parameter in model.parameters())


@contextmanager
def merged_lora(model: nn.Module) -> Iterator[None]:
    """Merge active LoRA adapters inside the block, except into quantised layers; do not train or
    save the model there.

    What is made of the merged weights (``products``) lasts as long as they do.
    """
    layers = _mergeable(model)
    weights = [
        weight for layer in layers for weight in layer.get_base_layer().parameters(recurse=False)
    ]
    with restored(weights, "data"), using(Products()) if layers else nullcontext():
        try:
            for layer in layers:
                _merge(layer)
            yield
        finally:
            for layer in layers:
                layer.merged_adapters.clear()


def _merge(layer: Any) -> None:
    base, names = (
        layer.get_base_layer(),
        [name for name in layer.active_adapters if name in layer.lora_A],
    )
    if not all(_is_plain(layer, name) for name in names):
        layer.merge(safe_merge=True)
        return
    for name in names:
        a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
        base.weight.data = torch.addmm(base.weight.data, b.data, a.data, alpha=layer.scaling[name])
        layer.merged_adapters.append(name)


def _is_plain(layer: Any, name: str) -> bool:
    from peft.tuners.lora.layer import Linear

    if (
        not isinstance(layer, Linear)
        or layer.fan_in_fan_out
        or name in layer.lora_variant
        or layer.lora_bias[name]
    ):
        return False
    factors = layer.lora_A[name].weight, layer.lora_B[name].weight
    return (
        type(layer.get_base_layer()) is nn.Linear
        and all(
            weight.dtype is torch.float32 for weight in (layer.get_base_layer().weight, *factors)
        )
        and all(bool(weight.isfinite().all()) for weight in factors)
    )


def _mergeable(model: nn.Module) -> list[Any]:
    from peft.tuners.lora import LoraLayer

    layers: list[Any] = [
        module
        for module in model.modules()
        if isinstance(module, LoraLayer) and hasattr(module, "merge")
    ]
    return [
        layer
        for layer in layers
        if not (layer.merged or layer.disable_adapters)
        and all(
            parameter.is_floating_point()
            for parameter in layer.get_base_layer().parameters(recurse=False)
        )
    ]


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
