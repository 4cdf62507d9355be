"""Rollouts that really ran, from written completions: what the tests of scoring and of rows start
from."""

import math

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import run_rollouts
from memalpha.agent.step import AgentStep
from memalpha.models.registry import make_tokenizer
from memalpha.rewards import PARTS, StepReward
from memalpha.types import Chunk, Instance, Question, Sampling
from tests.helpers.scripted import ScriptedGenerator

WORDS = ("apple", "boat", "candle", "door", "engine", "feather", "was", "seen", "?")


def make_agent(**settings):
    return AgentStep(
        AgentConfig(**{"schema": "facts", "codec": "compact", **settings}),
        make_tokenizer(WORDS, 2048),
    )


def make_instance(name, *texts, ask=()):
    questions = tuple(Question(f"was {word} seen?", (word,), id=word) for word in ask)
    return Instance(name, "test", tuple(map(Chunk, texts)), questions)


def step_reward(*values):
    """The first parts of a step's reward; the others are not scored."""
    return StepReward({**dict.fromkeys(PARTS, math.nan), **dict(zip(PARTS, values, strict=False))})


def run_script(agent, instances, *lockstep):
    """One list of completions for each lockstep over chunks, in the order of the instances that
    still read."""
    script = [text for texts in lockstep for text in texts]
    generator = ScriptedGenerator(script, agent.encoder.tokenizer)
    rollouts = run_rollouts(instances, agent, generator, Sampling(1024))
    assert len(generator.prompts) == len(script)
    return rollouts
