"""The trained agent as something to use: feed it text, ask it questions, see its memory. In process, one memory, nothing durable.

The prompts and the handling of completions are those of training (``memalpha.agent.step``), and so is the configuration: it lies
beside the adapter.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import Rollout, StepRecord, take_step
from memalpha.agent.step import AgentStep
from memalpha.memory.render import render_entry
from memalpha.protocols import Generator, Hit, Reader, ReadRequest
from memalpha.types import Chunk, Entry, Instance, OperationResult, Question, Sampling


class MemoryAgent:
    """An agent with one memory.

    Args:
        step: Prompt maker and applier.
        generator: Writes the completions.
        reader: Answers questions; None makes ``ask`` answer with what was found.
        retrieve_k: Entries retrieved for a question.
    """

    def __init__(self, step: AgentStep, generator: Generator, reader: Reader | None = None, retrieve_k: int = 5) -> None:
        self.step, self.generator, self.reader, self.retrieve_k = step, generator, reader, retrieve_k
        memory = step.new_memory()
        self._rollout = Rollout(Instance("live", "live", (), ()), memory, step.new_retriever(memory))

    @classmethod
    def load(
        cls,
        trained: str | Path,
        model: str | Path | None = None,
        *,
        reader: Reader | None = None,
        router: str | Path | None = None,
    ) -> MemoryAgent:
        """Load a trained agent.

        Args:
            trained: Folder that ``memalpha train`` or ``memalpha warmup`` wrote: an adapter, or a whole model.
            model: Base of the adapter: registered name, folder or Hub name; None takes the one the adapter names.
            reader: Answers questions; None answers with what was found.
            router: Trained section router for layer 1 of its retriever; None takes the agent's own, if it has one.

        Raises:
            InputError: If the folder is no agent of ours, or belongs to another base, or the router is none.
        """
        from memalpha.generation.hf import HFGenerator
        from memalpha.models import load_policy_model
        from memalpha.models.policy import base_of

        config = AgentConfig.load(trained)
        if router is not None:
            config = replace(config, retrieval=replace(config.retrieval, router=str(router)))
        whole = (Path(trained) / "config.json").is_file()
        policy = load_policy_model(trained) if whole else load_policy_model(model or base_of(trained), adapter=trained)
        policy.model.eval()
        return cls(AgentStep(config, policy.tokenizer), HFGenerator(policy.model, policy.tokenizer), reader)

    def add(self, text: str, time: str | None = None) -> tuple[OperationResult, ...]:
        """Let the agent read a text and update its memory; return what its calls did.

        Args:
            text: One chunk, at most ``max_chunk_tokens`` long.
            time: When it was said (ISO 8601).

        Raises:
            InputError: If the text is too long.
        """
        chunk = Chunk(text, time)
        rollout = self._rollout
        prompt = self.step.prompt(rollout.memory, rollout.retriever, chunk)
        completion = self.generator.generate([prompt], Sampling(self.step.config.max_new_tokens))[0]
        rollout.instance = Instance("live", "live", (*rollout.instance.chunks, chunk), ())
        return take_step(rollout, self.step, prompt, completion).outcome.results

    def ask(self, question: str) -> str:
        """Answer a question from the memory alone."""
        passages = tuple(render_entry(hit.entry) for hit in self.search(question))
        if self.reader is None:
            return "\n".join(passages)
        return self.reader.read([ReadRequest(Question(question, ("",)), passages)])[0].text

    def search(self, query: str, k: int | None = None) -> list[Hit]:
        """Return the entries found for a query, best first."""
        return self._rollout.retriever.search(query, k or self.retrieve_k)

    @property
    def memory(self) -> tuple[Entry, ...]:
        """All entries, in order of creation."""
        return tuple(self._rollout.memory)

    @property
    def history(self) -> tuple[StepRecord, ...]:
        """What was read and done, one record a text."""
        return tuple(self._rollout.steps)

    def __repr__(self) -> str:
        """Show the memory, an entry a line."""
        lines = [f"{entry.id} {render_entry(entry)}" for entry in self.memory]
        return "\n".join([f"MemoryAgent with {len(lines)} entries", *lines])
