"""Where the files of a trained agent lie. A run keeps its agent in ``adapter``; whoever names the run means that."""

from __future__ import annotations

from pathlib import Path

from memalpha.agent.config import AGENT_FILE
from memalpha.errors import InputError


def agent_folder(trained: str | Path) -> Path:
    """Return the folder that holds an agent's files: the one named, or ``adapter`` inside that of a run.

    Raises:
        InputError: If there is no such folder.
    """
    folder = Path(trained)
    if not folder.is_dir():
        raise InputError(
            f"no folder {str(trained)!r}",
            expected="a run folder, or the folder of an adapter or a whole model that memalpha trained",
        )
    inside = folder / "adapter"
    return inside if (inside / AGENT_FILE).is_file() and not (folder / AGENT_FILE).is_file() else folder


__all__ = ["agent_folder"]
