"""A trained router as layer 1 of the retriever; ``memalpha router train`` on ``task: sections`` makes the file.

What always holds: a section without entries in training is always searched, after the others; at least one trained section is
searched; other sections than in training are an error. Several agents decide by their mean probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.policies import Checkpoint, Policy, mean_probabilities
from memalpha.protocols import Embedder
from memalpha.retrieval.embedders import make_embedder

_SEARCHED = 0.5
"""Least probability of a section that is searched."""


class LearnedSectionRouter:
    """Ranks the sections for a question (a ``SectionRouter``); ``routes`` is the checkpoint's, ``embedder`` that of training.

    InputError if the embedder's dimension is not that of the policies' observations.
    """

    def __init__(self, policies: Sequence[Policy], routes: dict[str, Any], embedder: Embedder) -> None:
        self.sections: tuple[str, ...] = tuple(routes["sections"])
        self._trained = set(routes["trained_sections"])
        self._policies, self._embedder = list(policies), embedder
        size = policies[0].shape.size
        if size != embedder.dimension:
            raise InputError(f"a router for embeddings of {size}", expected=f"the embedder's dimension, {embedder.dimension}")

    @classmethod
    def load(cls, path: str | Path, embedder: Embedder | None = None, embedder_name: str = "") -> LearnedSectionRouter:
        """Load a checkpoint from a file that ``memalpha router train`` wrote, or its run folder.

        InputError if there is none or it routes no sections, MissingExtraError if its embedder is not installed. ``embedder``
        (called ``embedder_name``) is shared if it is the one of training.
        """
        checkpoint = Checkpoint.load(path)
        policies = checkpoint.policies()
        if not checkpoint.routes.get("sections") or not policies:
            raise InputError(
                f"{path} holds no policy that ranks sections (learner {checkpoint.learner!r})",
                expected="a checkpoint of mappo, grpo or ppo on task: sections",
            )
        name = str(checkpoint.routes["embedder"])
        shared = embedder if embedder is not None and embedder_name == name else make_embedder(name)
        return cls(policies, dict(checkpoint.routes), shared)

    def rank(self, query: str, memory: Memory) -> list[str]:
        """Return the sections to search, likeliest first; InputError if the memory's list sections are not those of training."""
        present = tuple(section.name for section in memory.schema.lists)
        if present != self.sections:
            raise InputError(
                f"a router trained on the sections {', '.join(self.sections)}",
                expected=f"those of the memory: {', '.join(present)}",
                fix="train one on this schema, or set retrieval.router to nothing",
            )
        seen = torch.from_numpy(self._embedder.embed([query])[:1].astype(np.float32))
        search = mean_probabilities(self._policies, seen)[0, :, 1].numpy()  # (K,)
        ranked = [i for i in np.argsort(-search, kind="stable") if self.sections[i] in self._trained]
        chosen = [i for i in ranked if search[i] >= _SEARCHED] or ranked[:1]
        return [self.sections[i] for i in chosen] + [name for name in self.sections if name not in self._trained]
