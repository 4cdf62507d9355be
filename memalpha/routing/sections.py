"""A trained router at work: layer 1 of the two-layer retriever by a policy instead of by FAISS.

What always holds: a section that held no entry in training is always searched, after the others, since nothing is known of it; at
least one trained section is searched; a memory with other sections than those of training is an error. Several agents decide by
the mean of their probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.protocols import Embedder
from memalpha.retrieval.embedders import make_embedder
from memalpha.routing.checkpoints import Checkpoint, unpack_members
from memalpha.routing.policies import Policy, policy_from
from memalpha.routing.ppo import PPOOptions, make_optimizer

_SEARCHED = 0.5
"""A section is searched if that is at least as likely as not."""


class LearnedSectionRouter:
    """Ranks the sections of a memory for a question; a ``memalpha.retrieval.two_layer.SectionRouter``.

    Args:
        policies: Trained policies, at least one.
        routes: What ``SectionTask.routes`` returned.
        embedder: Embeds the questions; the one of training.
    """

    def __init__(self, policies: Sequence[Policy], routes: dict[str, Any], embedder: Embedder) -> None:
        self.sections: tuple[str, ...] = tuple(routes["sections"])
        self._trained = set(routes["trained_sections"])
        self._sequential = bool(routes["sequential"])
        self._policies, self._embedder = list(policies), embedder
        size = policies[0].shape.size - (len(self.sections) if self._sequential else 0)
        if size != embedder.dimension:
            raise InputError(f"a router for embeddings of {size}", expected=f"the embedder's dimension, {embedder.dimension}")

    @classmethod
    def load(cls, path: str | Path, embedder: Embedder | None = None, embedder_name: str = "") -> LearnedSectionRouter:
        """Load a checkpoint of a section task.

        Args:
            path: File that ``memalpha router train`` wrote, or its run folder.
            embedder: Used if it is the one of training, so that a question is embedded once.
            embedder_name: Its name.

        Raises:
            InputError: If there is no such file, or it routes no sections.
            MissingExtraError: If what the embedder needs is not installed.
        """
        file = Path(path) / "checkpoint.pt" if Path(path).is_dir() else Path(path)
        checkpoint = Checkpoint.load(file)
        members = checkpoint.state.get("members", [])
        if not checkpoint.routes.get("sections") or not members:
            raise InputError(
                f"{file} holds no policy that ranks sections (learner {checkpoint.learner!r})",
                expected="a checkpoint of mappo, grpo or ppo on task: sections",
            )
        name = str(checkpoint.routes["embedder"])
        shared = embedder if embedder is not None and embedder_name == name else make_embedder(name)
        policies = [policy_from(member["policy"]) for member in members]
        unpack_members(checkpoint.state, [(policy, make_optimizer(policy, PPOOptions())) for policy in policies])
        return cls(policies, dict(checkpoint.routes), shared)

    def rank(self, query: str, memory: Memory) -> list[str]:
        """Return the sections to search for a question, likeliest first.

        Raises:
            InputError: If the memory has other list sections than those of training.
        """
        present = tuple(section.name for section in memory.schema.lists)
        if present != self.sections:
            raise InputError(
                f"a router trained on the sections {', '.join(self.sections)}",
                expected=f"those of the memory: {', '.join(present)}",
                fix="train one on this schema, or set retrieval.router to nothing",
            )
        chosen = self._named(query) if self._sequential else self._set(query)
        return [*chosen, *(name for name in self.sections if name not in self._trained)]

    def probabilities(self, query: str) -> NDArray[np.float32]:
        """Return the probability of every option at the first step, shape (K, A)."""
        blank = np.zeros(len(self.sections) if self._sequential else 0, dtype=np.float32)
        return self._probabilities(np.concatenate([self._embedder.embed([query])[0], blank]))

    def _set(self, query: str) -> list[str]:
        search = self.probabilities(query)[:, 1]
        ranked = [self.sections[i] for i in np.argsort(-search, kind="stable") if self.sections[i] in self._trained]
        likely = {name for name, p in zip(self.sections, search, strict=True) if p >= _SEARCHED}
        return [name for name in ranked if name in likely] or ranked[:1]

    def _named(self, query: str) -> list[str]:
        vector = self._embedder.embed([query])[0]
        searched = np.zeros(len(self.sections), dtype=np.float32)
        chosen: list[str] = []
        while len(chosen) < len(self.sections):
            options = self._probabilities(np.concatenate([vector, searched]))[0]
            if not chosen:  # to stop at once is no answer
                options = options * np.array([name in self._trained for name in (*self.sections, "")])
            named = int(options.argmax())
            if named == len(self.sections) or searched[named]:
                break
            searched[named] = 1.0
            chosen.append(self.sections[named])
        return [name for name in chosen if name in self._trained]

    @torch.no_grad()
    def _probabilities(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        seen = torch.from_numpy(observation[None].astype(np.float32))
        mean = torch.stack([policy.log_probs(seen).exp() for policy in self._policies]).mean(dim=0)
        found: NDArray[np.float32] = mean[0].numpy()
        return found
