"""Other people's chat templates: what they cannot say, when they say it, how a turn ends, and what
they may take. Expected texts are transformers' own."""

import hashlib
import json
import resource
import time
from pathlib import Path

import pytest
import torch
import trl
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import chat_template_utils

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.generation.hf import AnsweringModel, HFGenerator, end_ids
from memalpha.models import load_policy_model
from memalpha.models.registry import build_nano, make_tokenizer, toy_texts
from memalpha.qa.readers import reader_messages
from memalpha.sandbox.worker import DATE, set_limits
from memalpha.text.encoding import chat_ids, plain_ids, render_chat, turn_end
from memalpha.text.thinking import decode_completion
from memalpha.types import Chunk

SHIPPED = Path(trl.__file__).parent / "chat_templates"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
SMOL = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)


def with_template(template, added=()):
    tokenizer = make_tokenizer((*toy_texts(), "Porto"), 2048)
    tokenizer.add_tokens(list(added))
    tokenizer.chat_template = template
    return tokenizer


def turns(check="", end="<end>", system="{{ m.content }}"):
    """A template without a system role unless ``check`` is empty."""
    return (
        "{% for m in messages %}" + check + "<{{ m.role }}>"
        f"{{% if m.role == 'system' %}}{system}{{% else %}}{{{{ m.content }}}}{{% endif %}}{end}\n"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )


# ------------------------------------------------------------------------------------------------
# prompts of the shipped agents
@pytest.mark.parametrize(
    ("name", "digest"),
    [  # recorded on commit 848c3e97
        ("smol", "d49addb9fe03a444135410d23a6d4935b8a788b18218259d853f7bb6843cfb93"),
        ("qwen2_5", "929fe21972b904431cce7e2da3bb66b0f00be606210d1bec869f72c2dd9f6c2d"),
        ("llama3_1", "51e033d9c79e4a756d359debb7227ab922d9cb92eb52891e2d28589d40c7c8f6"),
        ("phi3", "b4f61f6c6dcdc30e0c3d6b7a7058aaa8b0e8d1fcd6276141981abef843dadf4b"),
    ],
)
def test_prompts_are_bit_for_bit_those_of_before(name, digest):
    template = SMOL if name == "smol" else (SHIPPED / f"{name}.jinja").read_text()
    tokenizer = make_tokenizer(toy_texts(), 2048)
    tokenizer.chat_template = template
    seen = hashlib.sha256()
    tools = []
    for schema, codec in (("facts", "compact"), ("mem_alpha", "hermes")):
        agent = AgentStep(AgentConfig(schema=schema, codec=codec), tokenizer)
        memory = agent.new_memory()
        chunk = Chunk("I moved to <|im_end|>Porto today.", "2024-03-05")
        prompt = agent.prompt(memory, agent.new_retriever(memory), chunk)
        seen.update(json.dumps([prompt.ids, prompt.shared]).encode())
        tools = [agent.codec.begins_thinking, "memory_insert" not in agent.system]
    asked = chat_ids(tokenizer, reader_messages("where?", ["a", "b"], tagged=True))
    seen.update(json.dumps(asked).encode())
    seen.update(json.dumps(tools).encode())
    assert seen.hexdigest() == digest


@pytest.mark.parametrize("name", ["gemma3", "llama3", "llama3_2", "cohere2", "gptoss", "phi3"])
def test_a_template_gives_what_transformers_gives_on_one_day(name, monkeypatch):
    class Clock(type(DATE)):
        now = classmethod(lambda cls, tz=None: DATE)

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    chat_template_utils._compile_jinja_template.cache_clear()
    tokenizer = with_template((SHIPPED / f"{name}.jinja").read_text())
    wanted = tokenizer.apply_chat_template(
        CHAT, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    chat_template_utils._compile_jinja_template.cache_clear()
    assert render_chat(tokenizer, CHAT) == wanted


def test_a_system_that_refuses_one_limit_sets_the_others(monkeypatch):
    given = []

    def setrlimit(kind, limits):
        if kind == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")
        given.append(kind)

    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    set_limits()
    assert given == [resource.RLIMIT_CPU, resource.RLIMIT_CORE]


# ------------------------------------------------------------------------------------------------
# no system role
@pytest.mark.parametrize(
    "template",
    [
        turns("{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"),
        turns("{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ 1 / 0 }}{% endif %}"),
        turns(system=""),
        turns(system="{{ m.content[:3] }}"),
        (SHIPPED / "gemma.jinja").read_text(),
    ],
)
def test_without_a_system_role_the_instructions_stand_before_what_the_user_says(template):
    tokenizer = with_template(template)
    text = render_chat(tokenizer, CHAT)
    assert text.count("Be brief.\n\nWhere?") == text.count("Be brief.") == 1
    agent = AgentStep(AgentConfig(schema="facts", codec="compact"), tokenizer)
    memory = agent.new_memory()
    prompt = agent.prompt(memory, agent.new_retriever(memory), Chunk("I moved.", None))
    shown = tokenizer.decode(prompt.ids)
    assert f"{agent.system}\n\n<chunk>\nI moved.\n</chunk>" in shown
    # a reader, with texts that count as data
    asked = tokenizer.decode(chat_ids(tokenizer, CHAT))
    assert "Be brief.\n\nWhere?" in asked
    assert [message["role"] for message in prompt.messages] == ["system", "user"]


# ------------------------------------------------------------------------------------------------
# today's date
@pytest.mark.parametrize(
    ("today", "shown"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ strftime_now('%Y-%m-%d') }}", "2024-07-26"),
        ("{{ date_string }}", "26 Jul 2024"),
        ("{% set f = strftime_now %}{{ f('%B %d, %Y') }}", "July 26, 2024"),
    ],
)
def test_todays_date_is_the_same_every_day(today, shown, monkeypatch):
    texts = []
    for day in (1, 2):
        monkeypatch.setattr(time, "time", lambda day=day: 2e9 + 86400 * day)
        texts.append(render_chat(with_template(f"Today {today}{{# {day} #}}\n{turns()}"), CHAT))
    assert texts[0] == texts[1] and texts[0].startswith(f"Today {shown}<")


def test_what_a_template_draws_at_random_is_the_same_each_time():
    drawn = {
        render_chat(with_template(f"{{{{ range(10**5)|random }}}}{{# {i} #}}{turns()}"), CHAT)
        for i in range(2)
    }
    assert len(drawn) == 1


# ------------------------------------------------------------------------------------------------
# the end of a turn
@pytest.mark.parametrize(
    ("template", "end"),
    [
        (turns(end="<end_of_turn>"), "<end_of_turn>"),
        (turns(end=" <|end|>"), "<|end|>"),
        (turns(end="\n<|eot_id|>"), "<|eot_id|>"),
        (turns(end="{{ eos_token }}"), "<|im_end|>"),
        (turns(end=""), "<|im_end|>"),
        ("{{ raise_exception('none') }}", "<|im_end|>"),
    ],
)
def test_the_template_tells_what_ends_a_turn(template, end):
    tokenizer = with_template(template, ["<end_of_turn>", "<|end|>", "<|eot_id|>"])
    ids = (*plain_ids(tokenizer, "Porto"), tokenizer.convert_tokens_to_ids(end))
    assert turn_end(tokenizer) == ids[-1] and decode_completion(tokenizer, ids) == "Porto"


@pytest.mark.parametrize("listed", [True, False])
def test_a_sure_answer_is_worth_one_whatever_ends_it(listed):
    torch.manual_seed(0)
    tokenizer = with_template(turns(end="<|end|>"), ["<|end|>", "<other>"])
    written, other = tokenizer.convert_tokens_to_ids(["<|end|>", "<other>"])
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=len(tokenizer), num_attention_heads=2, **sizes)
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [0, other] if listed else None
    end = other if listed else written
    assert end_ids(model, tokenizer) >= {end, written, tokenizer.eos_token_id}
    chat = [{"role": "user", "content": "city?"}]
    asked, said = chat_ids(tokenizer, chat), (*plain_ids(tokenizer, "Porto"), end)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        logits = model(torch.tensor([[*asked, *said]])).logits[0, len(asked) - 1 : -1]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, torch.tensor(said)).backward()
        optimizer.step()
    reader = AnsweringModel(HFGenerator(model, tokenizer), tokenizer, 8)
    assert reader([chat]) == ["Porto"] or listed
    assert reader.probabilities([chat], ["Porto"])[0] > 0.9
    assert reader.probabilities([chat], ["apple"])[0] < 0.5


# ------------------------------------------------------------------------------------------------
# hostile templates
HOSTILE = {
    "fails": "{{ raise_exception('not\ntoday') }}",
    "syntax": "{% for %}",
    "undefined": "{{ nothing.at.all }}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "bomb": "{{ 'a' * 10**10 }}",
    "doubles": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}{{ ns.x }}",
    "number": "{{ 10**10**9 }}",
    "pads": "{{ 'x'|center(10**10) }}",
    "includes": "{% include 'other.jinja' ignore missing %}",
    "imports": "{% import '/etc/passwd' as x %}",
    "extends": "{% extends messages[0].content %}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "drops": "hello",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_template_that_fails_loops_or_takes_in_another_is_one_clear_error(kind, tmp_path):
    folder = build_nano(tmp_path, ["word"], layers=1, hidden=32)
    (folder / "chat_template.jinja").write_text(HOSTILE[kind])
    tokenizer = load_policy_model(folder).tokenizer
    start = time.monotonic()
    with pytest.raises(InputError, match=r"chat template of .* (fails|drops)") as caught:
        AgentStep(AgentConfig(schema="facts", codec="hermes"), tokenizer)
    assert time.monotonic() - start < 60 and len(str(caught.value).splitlines()) == 3
