"""The frozen base as a reader: its answers are those of the base model alone, and the policy comes
back as it was."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator, answer_chats, frozen_base
from memalpha.models import load_policy_model, resolve_model
from memalpha.text import render_chat
from memalpha.types import Completion, Prompt, Sampling, StopReason

CHATS = [
    [{"role": "user", "content": "was violin seen?"}],
    [{"role": "user", "content": "was window seen? table"}],
]


def test_answers_are_the_bases_own_and_frozen_layers_stay_frozen():
    base, tokenizer = load_policy_model(resolve_model("nano"))
    prompts = [
        Prompt(
            (), tuple(tokenizer(render_chat(tokenizer, chat), add_special_tokens=False).input_ids)
        )
        for chat in CHATS
    ]
    alone = [done.text for done in HFGenerator(base, tokenizer).generate(prompts, Sampling(8))]
    with pytest.raises(InputError, match="fully fine-tuned"):
        frozen_base(base, tokenizer)
    policy = get_peft_model(
        base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    torch.manual_seed(0)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
        if ".layers.0." in name:
            weight.requires_grad_(False)
    trainable = [name for name, weight in policy.named_parameters() if weight.requires_grad]
    adapted = [done.text for done in HFGenerator(policy, tokenizer).generate(prompts, Sampling(8))]
    assert adapted != alone  # else the test could not fail
    assert frozen_base(policy, tokenizer, max_new_tokens=8)(CHATS) == alone
    assert [name for name, weight in policy.named_parameters() if weight.requires_grad] == trainable


class Echo:
    """Answers with the last message; keeps what it drew."""

    def __init__(self):
        self.tokenizer, self.drawn = load_policy_model(resolve_model("nano"))[1], []

    def generate(self, prompts, sampling):
        self.drawn += prompts
        return [
            Completion(prompt.ids, prompt.messages[-1]["content"], StopReason.END)
            for prompt in prompts
        ]


def test_equal_chats_are_answered_once_and_every_one_gets_its_answer():
    echo = Echo()
    assert answer_chats(echo, echo.tokenizer, [CHATS[1], CHATS[0], CHATS[1]], 8) == [
        chat[0]["content"] for chat in (CHATS[1], CHATS[0], CHATS[1])
    ]
    assert len(echo.drawn) == 2
