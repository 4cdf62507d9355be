import pytest

from memalpha.agent.config import AgentConfig
from memalpha.models import fetch, write_adapter_record


@pytest.fixture(scope="module")
def nano_agent(tmp_path_factory):
    """A folder with an untrained LoRA adapter on the nano model and what fixes its agent."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path_factory.mktemp("nano") / "adapter"
    base = fetch("nano")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, task_type="CAUSAL_LM"))
    model.save_pretrained(folder)
    AgentConfig(schema="facts", codec="compact", max_chunk_tokens=1000, view_tokens=200, max_completion_length=16).save(folder)
    write_adapter_record(folder, "nano", model.config, AutoTokenizer.from_pretrained(base))
    return folder
