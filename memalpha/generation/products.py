"""Products with weights on CPUs through oneDNN, and adapters merged into their weights.

oneDNN lays a weight out once. PyTorch multiplies float32 with MKL, which uses AVX-512 on Intel's
processors alone. On an AMD EPYC oneDNN was 2.0 to 3.4 times as fast (docs/performance.md). Where
``faster`` is false, results are PyTorch's own. A layout is of a weight as it was, and no weight
says that it changed: a fused optimizer and ``.data`` leave its version, and a new one may get its
address. So layouts have an owner: ``Products``.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memalpha.errors import MemAlphaError

LEAST = 2**16  # elements of a weight that is worth laying out
CPUS = Path("/proc/cpuinfo")


@cache
def faster() -> bool:
    """Whether oneDNN is used: a processor with AVX-512 of another maker than Intel."""
    other = CPUS.is_file() and "GenuineIntel" not in CPUS.read_text(encoding="utf-8")
    avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return other and avx512 and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def float32_products() -> str:
    """Which library multiplies with float32 weights here, for the record of a run."""
    return "oneDNN" if faster() else "PyTorch"


def with_plain_products(*tensors: Tensor, kind: torch.dtype = torch.float32) -> bool:
    """Whether all are whole tensors of this type, neither sharded by FSDP2 nor by ZeRO-3."""
    kinds = all(t.dtype is kind and type(t) in (Tensor, nn.Parameter) for t in tensors)
    return kinds and not any(hasattr(t, "ds_id") for t in tensors)


def fits(weight: Tensor) -> bool:
    """Whether products with a weight (outputs, inputs) go through oneDNN: large, float32, on a CPU,
    outside autocast.
    """
    cpu = weight.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return cpu and weight.numel() >= LEAST and with_plain_products(weight) and faster()


class Products(dict[tuple[Tensor, Hashable], Any]):
    """The copies that were made of weights (other layouts, blocks, rounded copies), by weight and
    kind.

    It is right while the weights stand still. So it belongs to whoever may change them, who lets go
    of it, or clears it, before that.
    """


_IN_USE: ContextVar[Products | None] = ContextVar("products", default=None)


@contextmanager
def using(products: Products) -> Iterator[None]:
    """Keep in ``products`` what this thread makes of weights in the block; the innermost counts."""
    token = _IN_USE.set(products)
    try:
        yield
    finally:
        _IN_USE.reset(token)


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False
) -> Tensor:
    """Return x @ weight.T + bias, or x @ weight if ``transposed``, without a gradient; x (rows,
    inputs or outputs).

    Outside ``using`` by PyTorch: a layout for one product costs more than it saves.
    """
    if _IN_USE.get() is None or not fits(weight):
        return nn.functional.linear(x, weight.t() if transposed else weight, bias)
    layout = _once(weight, transposed, partial(_lay_out, weight, transposed))
    return _by_onednn(x, layout, bias)


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def multiply(x: Tensor, y: Tensor) -> Tensor:
    """Return x @ y' without a gradient, x (n, k) and y (m, k): where neither stands still."""
    if x.dtype is not torch.float32 or x.device.type != "cpu" or not faster():
        return x @ y.t()
    if not (y.is_contiguous() or y.t().is_contiguous()):
        y = y.contiguous()  # with gaps oneDNN is a thousand times slower
    z: Tensor = torch.ops.mkldnn._linear_pointwise(x, y, None, "none", [], "")
    return z


def blocks(weight: Tensor, rows: int) -> Sequence[Tensor]:
    """Split a weight into blocks of rows; inside ``using`` always the same tensors, so that each is
    laid out once.
    """
    parts: Sequence[Tensor] = _once(
        weight, ("blocks", rows), partial(torch.split, weight.detach(), rows)
    )
    return parts


def round_weight(weight: Tensor, kind: torch.dtype) -> Tensor:
    """Return a frozen weight in another type, without a gradient; inside ``using`` rounded once."""
    if weight.dtype is kind:
        return weight
    copy: Tensor = _once(weight, kind, partial(weight.detach().to, kind))
    return copy


def _once(weight: Tensor, what: Hashable, make: Callable[[], Any]) -> Any:
    products = _IN_USE.get()
    if products is None:
        return make()
    if (weight, what) not in products:
        products[weight, what] = make()
    return products[weight, what]


def _lay_out(weight: Tensor, transposed: bool) -> Any:
    source = weight.detach().t().contiguous() if transposed else weight.detach()
    return torch.ops.mkldnn._reorder_linear_weight(source)


@contextmanager
def fast_linears(model: nn.Module, *, lay_out: bool = True) -> Iterator[None]:
    """Let the plain linear layers of a model go through oneDNN in the block, without gradients.

    Layouts are kept by the ``using`` around it, else for the block, in which the weights stand
    still. Without ``lay_out`` oneDNN reads the weights as they lie: slower, and no memory.
    """
    forwards = {
        layer: partial(_multiply, layer, product if lay_out else _by_onednn)
        for layer in model.modules()
        if type(layer) is nn.Linear and "forward" not in vars(layer) and fits(layer.weight)
    }
    with forwarding(forwards), using(Products()) if _IN_USE.get() is None else nullcontext():
        yield


def _multiply(layer: nn.Linear, multiply: Callable[..., Tensor], x: Tensor) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    return multiply(rows, layer.weight, layer.bias).view(*x.shape[:-1], -1)


@contextmanager
def forwarding(forwards: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Give modules another forward pass in the block."""
    for module, forward in forwards.items():
        module.forward = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.forward


# ------------------------------------------------------------------------------------------------
# adapters merged into float32 weights
# PEFT's own merge and unmerge leave rounding errors. Here the original tensors are kept and put
# back, also if the block raises. The cost is a second copy of the adapted weights.


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
        restoring(weights, "data"),
        restoring(layers, "merged_adapters"),
        using(Products()) if layers else nullcontext(),
    ):
        for layer, weight in zip(layers, weights, strict=True):
            layer.merged_adapters = adapters[layer]
            for name in adapters[layer]:
                a, b = layer.lora_A[name].weight.data, layer.lora_B[name].weight.data
                if not (a.isfinite().all() and b.isfinite().all()):
                    raise MemAlphaError(f"the adapter {name!r} has weights that are not finite")
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
def restoring(items: Iterable[Any], *names: str) -> Iterator[None]:
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
