"""From the padded batches that TRL hands around to rows without padding, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from memalpha.training.packed import Row


def trim(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cut, in place, the padding that no row of this part needs: of prompts on the left, of completions on the right."""
    completion = max(1, int(inputs["completion_mask"].sum(1).max()))
    prompt = int(inputs["prompt_mask"].any(0).int().argmax())
    for name, value in inputs.items():
        if value.ndim == 2:
            inputs[name] = value[:, prompt:] if name.startswith("prompt_") else value[:, :completion]
    return inputs


def unpad(input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int, shared: Sequence[int]) -> list[Row]:
    """Return the rows of a batch.

    Args:
        input_ids: (B, T), prompts padded on the left, completions on the right.
        attention_mask: (B, T), 0 for padding.
        keep: Width of the completions.
        shared: Leading prompt ids of each row that others may share.
    """
    kept = attention_mask.bool()
    return [
        Row(ids[:-keep][mask[:-keep]].tolist(), ids[-keep:][mask[-keep:]].tolist(), prefix)
        for ids, mask, prefix in zip(input_ids, kept, shared, strict=True)
    ]


def pad(values: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Return one-dimensional tensors as rows of a (B, width) tensor, padded on the right with 0."""
    padded = pad_sequence(list(values), batch_first=True)
    return torch.nn.functional.pad(padded, (0, width - padded.shape[1]))
