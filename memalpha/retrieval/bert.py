"""BERT in plain PyTorch, to embed texts with the model of sentence-transformers.

sentence-transformers itself brings scikit-learn, scipy, pandas and transformers' model code: two
seconds of a process, for six layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, gelu, layer_norm, linear, scaled_dot_product_attention

from memalpha.files import read_object


class Bert:
    """A BERT encoder with mean pooling, in evaluation mode, from a folder of
    sentence-transformers.

    ``window`` is in tokens, two special ones included; what is longer is cut off.
    """

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        fields = read_object(folder / "config.json")
        self._layers = int(fields["num_hidden_layers"])
        self._heads = int(fields["num_attention_heads"])
        self._epsilon = float(fields["layer_norm_eps"])
        self._weights = load_file(folder / "model.safetensors")
        self.window = int(read_object(folder / "sentence_bert_config.json")["max_seq_length"])
        self.tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def encode(self, texts: Sequence[str], batch: int = 64) -> Tensor:
        """Return unit vectors, float32 (texts, hidden size); ``batch`` texts are read at once, of
        about equal length.
        """
        rows = [self._ids(text) for text in texts]
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
        vectors: list[Tensor] = [torch.empty(0)] * len(rows)
        with torch.no_grad():
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                pooled = self._pooled([rows[row] for row in chosen])
                for row, vector in zip(chosen, pooled, strict=True):
                    vectors[row] = vector
        return torch.stack(vectors)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids if len(ids) <= self.window else [*ids[: self.window - 1], ids[-1]]

    def _pooled(self, rows: Sequence[Sequence[int]]) -> Tensor:
        longest = max(len(row) for row in rows)
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        lengths = torch.tensor([len(row) for row in rows])
        real = torch.arange(longest) < lengths[:, None]
        hidden = self._hidden(ids, None if bool(real.all()) else real[:, None, None])
        weights = real[..., None].float()
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=1)

    def _hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        names = ("word_embeddings", "position_embeddings", "token_type_embeddings")
        words, positions, kinds = (self._weights[f"embeddings.{name}.weight"] for name in names)
        x = embedding(ids, words) + kinds[0] + positions[: ids.shape[1]]
        x = self._norm("embeddings", x)
        for index in range(self._layers):
            layer = f"encoder.layer.{index}"
            query, key, value = (
                self._linear(f"{layer}.attention.self.{part}", x)
                .view(*ids.shape, self._heads, -1)
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            seen = scaled_dot_product_attention(query, key, value, mask)
            seen = seen.transpose(1, 2).reshape(x.shape)
            seen = self._linear(f"{layer}.attention.output.dense", seen)
            x = self._norm(f"{layer}.attention.output", seen + x)
            inner = gelu(self._linear(f"{layer}.intermediate.dense", x))
            x = self._norm(f"{layer}.output", self._linear(f"{layer}.output.dense", inner) + x)
        return x

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self._weights[f"{name}.LayerNorm.weight"]
        bias = self._weights[f"{name}.LayerNorm.bias"]
        return layer_norm(x, weight.shape, weight, bias, self._epsilon)
