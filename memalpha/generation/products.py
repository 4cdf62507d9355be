"""Products with float32 weights on CPUs through oneDNN, which lays a weight out once.

PyTorch multiplies float32 with MKL, which uses AVX-512 on Intel's processors alone. On an AMD EPYC oneDNN was 2.0 to 3.4 times as
fast (docs/performance.md). Where ``faster`` is false, nothing here is used, and results are PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

LEAST = 2**16
"""Elements of a weight that is worth laying out."""
_CPUS = Path("/proc/cpuinfo")


@cache
def faster() -> bool:
    """Whether oneDNN is used: a processor with AVX-512 of another maker than Intel, and a PyTorch that has its operations."""
    other = _CPUS.is_file() and "GenuineIntel" not in _CPUS.read_text(encoding="utf-8")
    return other and torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def plain(*tensors: Tensor, kind: torch.dtype = torch.float32) -> bool:
    """Whether all are whole tensors of this type, neither sharded by FSDP2 nor by ZeRO-3."""
    kinds = all(t.dtype is kind and type(t) in (Tensor, nn.Parameter) for t in tensors)
    return kinds and not any(hasattr(t, "ds_id") for t in tensors)


def fits(weight: Tensor) -> bool:
    """Whether products with a weight (outputs, inputs) go through oneDNN: large, float32, on a CPU, outside autocast."""
    cpu = weight.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return cpu and weight.numel() >= LEAST and plain(weight) and faster()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False) -> Tensor:
    """Return x @ weight.T + bias, or x @ weight if ``transposed``, without a gradient; x (rows, inputs or outputs)."""
    if not fits(weight):
        return nn.functional.linear(x, weight.t() if transposed else weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, _laid_out(weight, transposed), bias, "none", [], "")  # type: ignore[no-any-return]


def blocks(weight: Any, rows: int) -> Sequence[Tensor]:
    """Split a weight into blocks of rows; always the same tensors, so that each is laid out once, while the weight is the same."""
    return _kept(weight, ("blocks", rows), lambda: torch.split(weight.detach(), rows))  # type: ignore[no-any-return]


def rounded(weight: Any, kind: torch.dtype) -> Tensor:
    """Return a frozen weight in another type, without a gradient; kept with it until it changes."""
    return weight if weight.dtype is kind else _kept(weight, kind, lambda: weight.detach().to(kind))  # type: ignore[no-any-return]


def _laid_out(weight: Any, transposed: bool) -> Tensor:
    """The weight in oneDNN's layout, kept with it until it changes."""
    plain = weight.detach()
    return _kept(  # type: ignore[no-any-return]
        weight, transposed,
        lambda: torch.ops.mkldnn._reorder_linear_weight(plain.t().contiguous() if transposed else plain),
    )  # fmt: skip


def _kept(weight: Any, key: Any, make: Callable[[], Any]) -> Any:
    """What was made of a weight under a key, while the weight is the same."""
    state = weight._version, weight.data_ptr()
    if getattr(weight, "_made", (None,))[0] != state:
        weight._made = state, {}
    if key not in weight._made[1]:
        weight._made[1][key] = make()
    return weight._made[1][key]


@contextmanager
def fast_linears(model: nn.Module, *, keep: bool = False) -> Iterator[None]:
    """Let the plain linear layers of a model use ``product`` in the block, without gradients, with the weights as they are now.

    ``keep``: what is laid out stays for the next block, for weights that never change.
    """
    layers = [
        layer for layer in model.modules() if type(layer) is nn.Linear and "forward" not in vars(layer) and fits(layer.weight)
    ]
    before = [None if keep else vars(layer.weight).pop("_laid_out", None) for layer in layers]
    for layer in layers:
        layer.forward = _forward_of(layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer, kept in zip(layers, before, strict=True):
            del layer.forward
            if not keep:
                vars(layer.weight)["_laid_out"] = kept or (None,)


def _forward_of(layer: nn.Linear) -> Any:
    def forward(x: Tensor) -> Tensor:
        return product(x.reshape(-1, x.shape[-1]), layer.weight, layer.bias).view(*x.shape[:-1], -1)

    return forward
