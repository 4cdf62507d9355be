"""A short hash of the weights that train, so that a run folder says which weights wrote what.

The hash goes over the name, type and bytes of every trainable parameter; of a parameter with more than a million elements, over
evenly spaced ones (an optimizer step changes all of them). Under sharding it is that of this rank's shards.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import nn

ELEMENTS = 2**20
"""Most elements of one parameter that are hashed."""


def fingerprint(model: nn.Module) -> str:
    """Return 16 hexadecimal digits that change when a trainable weight does."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            shape = getattr(parameter, "ds_shape", parameter.shape)  # under ZeRO-3 a weight may be put together or not
            digest.update(f"{name} {parameter.dtype} {tuple(shape)}".encode())
            digest.update(_bytes(parameter))
    return digest.hexdigest()[:16]


def _bytes(parameter: nn.Parameter) -> bytes:
    shard = getattr(parameter, "ds_tensor", parameter)
    local: torch.Tensor = shard.to_local() if hasattr(shard, "to_local") else shard
    values = local.detach().flatten()
    values = values[:: max(1, math.ceil(values.numel() / ELEMENTS))].contiguous().cpu()
    return values.view(torch.uint8).numpy().tobytes()
