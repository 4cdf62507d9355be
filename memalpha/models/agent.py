"""Load a trained agent: from a run's folder, an adapter's, that of a whole model, or the Hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.agent.context import check_context
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.files import file_sha256, inside, path_of
from memalpha.hub import HUB_NAME, fetch_repository
from memalpha.models.adapters import (
    ADAPTER_WEIGHTS,
    adapter_record,
    base_of,
    check_adapter_folder,
    is_whole,
)
from memalpha.models.policy import load_policy_model

if TYPE_CHECKING:
    from memalpha.generation.hf import HFGenerator

READERS = {  # that ship beside the agents: name, sha256 of the weights
    "qwen2.5-0.5b-reader": "3aab2f62f399a099544756400fd22215759e934c4d3496c9e51959632616ab96",
    "smollm2-135m-reader": "f060c511f36cdde64d3e41cf214947e0e586cb35948c7f0cb4da7bab2245e100",
}
# the only files that are fetched: never code
_AGENT_FILES = [
    "*.json",
    "*.safetensors",
    "*.jinja",
    "*.txt",
    "*.model",
    "memalpha_schema.yaml",
]
_EXPECTED = (
    "a folder that memalpha train or memalpha warmup wrote, "
    "or a Hub name owner/name or owner/name@revision"
)


def find_agent(trained: str | Path) -> tuple[Path, str]:
    """Return folder and name of an adapter, whole model or run; a Hub name is fetched. ServiceError
    if the Hub does not answer.
    """
    text = str(trained)
    path = path_of(text or "no name", _EXPECTED)
    if text and path.is_dir():
        return agent_folder(text), path.resolve().name
    if isinstance(trained, Path) or not HUB_NAME.fullmatch(text):
        raise InputError(
            f"there is no trained agent at {text!r}",
            expected=_EXPECTED,
        )
    folder = fetch_repository(text, _AGENT_FILES)
    name = text.partition("@")[0]
    return folder, f"{name}@{folder.name[:12]}"


class LoadedAgent(NamedTuple):
    """A trained agent, ready for use.

    ``step`` makes prompts and applies completions, ``generator`` completes prompts. ``name`` is the
    agent's name, a Hub name with its commit; ``folder`` is where it was found.
    """

    step: AgentStep
    generator: HFGenerator
    name: str
    folder: Path


def load_agent(
    trained: str | Path,
    model: str | Path | None = None,
    *,
    archive: bool | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    trust_tools: bool = False,
    for_use: bool = False,
) -> LoadedAgent:
    """Load a trained agent from a folder or Hub name (``find_agent``).

    ``model`` is the base (None: the one the adapter names), ``archive`` whether what was read is
    kept and searched, too (None: the agent's own), ``dtype`` the type of the base's weights.
    ``trust_tools`` as in ``AgentConfig.load``. ``for_use``: adapters are not merged, which takes a
    second copy of weights, and the keys and values of a prompt's fixed words are kept.
    """
    from memalpha.generation.hf import HFGenerator

    folder, name = find_agent(trained)
    config = AgentConfig.load(folder, trust_tools)
    if archive is not None:
        config = replace(config, archive=archive)
    whole = is_whole(folder)
    base = folder if whole else model or base_of(folder)
    policy = load_policy_model(base, adapter=None if whole else folder, dtype=dtype)
    try:
        policy.model.to(device).eval()
    except (AssertionError, NotImplementedError, RuntimeError) as error:  # torch has no one for it
        raise InputError(
            f"the device {device!r} cannot be used: {str(error).splitlines()[0]}",
            expected="a device of this machine as torch names it, such as cpu, cuda, cuda:1 or mps",
        ) from error
    step = AgentStep(config, policy.tokenizer)
    check_context(step, policy.model.config)
    generator = HFGenerator(
        policy.model,
        policy.tokenizer,
        merge_adapters=False if for_use else None,
        opening=step.encoder.opening if for_use else (),
    )
    return LoadedAgent(step, generator, name, folder)


# ------------------------------------------------------------------------------------------------
# an agent's folder
def agent_folder(trained: str | Path) -> Path:
    """Return the folder of an agent: this one, or a run's ``adapter``; InputError if none."""
    folder = Path(trained)
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {str(trained)!r}",
            expected="a run folder, or the folder of an adapter or a whole model that "
            "memalpha trained",
        )
    in_run = folder / "adapter"
    is_run = (in_run / AGENT_FILE).is_file() and not (folder / AGENT_FILE).is_file()
    return in_run if is_run else folder


def own_reader(folder: Path) -> Path | None:
    """Return the folder of the reader that an agent names: one inside its own, or a shipped one.

    InputError if it is not there, is elsewhere, or a shipped one has other weights.
    """
    name = str(adapter_record(folder).get("reader") or "")
    if not name:
        return None
    digest = READERS.get(name)
    place = folder.resolve().parent / name if digest else inside(folder, name)
    weights = place / ADAPTER_WEIGHTS
    fix = "name another reader, or '' for no reader, which shows passages"
    if not weights.is_file():
        raise InputError(
            f"the reader that {folder} names is not at {name!r}",
            expected="the folder of a trained reader",
            fix=fix,
        )
    if digest and file_sha256(weights) != digest:
        raise InputError(
            f"{weights} differs from the reader {name!r} that memalpha ships",
            expected=f"sha256 {digest}",
            fix=fix,
        )
    check_adapter_folder(place)
    return place
