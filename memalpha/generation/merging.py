"""Fold LoRA adapters into the base weights for the time of a block, and leave the weights bitwise as they were.

PEFT's own merge and unmerge add and subtract the same numbers, which leaves rounding errors in the base weights after each round.
Here the original tensors are kept and put back, so nothing drifts, also when the block raises. The price is a second copy of the
adapted weights while the block runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
            layer.merge(safe_merge=True)
        yield
    finally:
        for parameter, tensor in originals:
            parameter.data = tensor
        for layer in touched:
            layer.merged_adapters.clear()


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
