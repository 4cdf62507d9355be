"""Load a trained agent: from a run's folder, an adapter's, that of a whole model, or the Hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memalpha.agent.config import AGENT_FILE, AgentConfig
from memalpha.agent.context import check_context
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.files import file_sha256, inside
from memalpha.models.adapters import (
    ADAPTER_WEIGHTS,
    adapter_record,
    base_of,
    check_adapter_folder,
    is_whole,
)
from memalpha.models.policy import load_policy_model
from memalpha.models.shipped import ADAPTERS, is_on_hub, resolve_adapter

if TYPE_CHECKING:
    from memalpha.generation.hf import HFGenerator


def find_agent(trained: str | Path) -> tuple[Path, str]:
    """Return folder and name of an adapter (as ``resolve_adapter`` takes it), whole model or run;
    errors as there.
    """
    folder = resolve_adapter(trained)
    text = str(trained)
    if is_on_hub(text):
        return folder, f"{text.partition('@')[0]}@{folder.name[:12]}"
    in_run = folder / "adapter"
    is_run = (in_run / AGENT_FILE).is_file() and not (folder / AGENT_FILE).is_file()
    return in_run if is_run else folder, folder.resolve().name


def adapter_option(trained: str) -> str:
    """Return what names a trained agent as the option ``adapter``: a name as it is, of a run the
    folder of its adapter.
    """
    return str(find_agent(trained)[0]) if Path(trained).is_dir() else trained


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


def own_reader(folder: Path) -> Path | None:
    """Return the folder of the reader that an agent names: one inside its own, or a shipped one,
    which is beside it or was fetched.

    InputError if it is not there, is elsewhere, or a shipped one has other weights.
    """
    name = str(adapter_record(folder).get("reader") or "")
    if not name:
        return None
    digest = ADAPTERS[name].files[ADAPTER_WEIGHTS] if name in ADAPTERS else ""
    place = folder.resolve().parent / name if digest else inside(folder, name)
    if digest and not place.is_dir():  # the agent's folder was copied alone
        place = resolve_adapter(name)
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
