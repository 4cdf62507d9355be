"""A host whose model says what it is told to, settings over it, and an adapter that says something
else than its base."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from peft import LoraConfig, get_peft_model

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.measure.host import HostedReader
from memalpha.measure.systems import Setting
from memalpha.models import load_policy_model, resolve_model
from memalpha.models.registry import make_tokenizer
from memalpha.types import Prompt
from tests.helpers.scripted import ScriptedGenerator

POSITIONS = 8192


class StubHost:
    """Stands for a ``PolicyHost``; keeps the scripted generator of each adapter."""

    def __init__(
        self, texts: Sequence[str], script: Callable[[Prompt], str] | Sequence[str] = ()
    ) -> None:
        self.tokenizer = make_tokenizer(texts, POSITIONS)
        self.positions = POSITIONS
        self.config = SimpleNamespace(
            get_text_config=lambda: SimpleNamespace(max_position_embeddings=POSITIONS)
        )
        self.script = script
        self.generators: dict[str, ScriptedGenerator] = {}

    def generator(self, adapter: str = "") -> ScriptedGenerator:
        self.generators[adapter] = ScriptedGenerator(self.script, self.tokenizer)
        return self.generators[adapter]

    def reader(self, reader: str, max_new_tokens: int) -> HostedReader:
        return HostedReader(self, reader, max_new_tokens)


def setting(
    instances,
    script=(),
    *,
    schema="facts",
    reader_tokens=64,
    retrieve_k=3,
    temperature=0.0,
    max_new_tokens=40,
) -> Setting:
    """A setting whose tokenizer has each word of the instances as one token."""
    host = StubHost([chunk.text for instance in instances for chunk in instance.chunks], script)
    config = AgentConfig(
        schema=schema,
        codec="compact",
        view_tokens=256,
        max_completion_length=max_new_tokens,
        embedder="hashing",
    )
    step = AgentStep(config, host.tokenizer)
    return Setting(step, host, reader_tokens, retrieve_k, temperature)  # type: ignore[arg-type]


def loud_adapter(folder: Path, seed: int) -> Path:
    """Save an adapter of the nano policy with weights that change what it says."""
    base, _ = load_policy_model(resolve_model("nano"))
    torch.manual_seed(seed)
    policy = get_peft_model(
        base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    policy.save_pretrained(folder)
    return folder
