"""What tells the things an evaluation is run on from others: sha256 digests of adapters, base models and agents.

Those of instances are ``memalpha.data.schema.digest_instances``.

What always holds: how a JSON file is laid out makes no other thing of what it says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memalpha.agent.config import AGENT_FILE, ROUTER_FILE, SCHEMA_FILE
from memalpha.files import read_object

_STRETCHES, _STRETCH = 64, 65_536
"""How many stretches of a weights file are read for its digest, and the bytes of each."""

_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")
_BESIDE_WEIGHTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def digest_adapter(folder: str | Path) -> str:
    """Return the sha256 over an adapter's weights and configuration.

    The names of modules count as sets: PEFT writes them in another order each time, and the same training run twice is the same
    adapter.
    """
    return _sha256(_files(sorted(Path(folder).glob("adapter_*")), _without_order))


def digest_model(folder: str | Path) -> str:
    """Return a sha256 that tells a base model's weights, configuration, tokenizer and chat template from others.

    Cheap for a model of many GB: of each weights file it takes the name, the size and 64 stretches of 64 KB from its beginning to
    its end (all of a file of at most 4 MB), so weights that differ nowhere else are not told apart; the other files whole, but for
    the version of the library that wrote them.
    """
    weights = sorted(file for pattern in _WEIGHTS for file in Path(folder).glob(pattern))
    beside = _files(_there(folder, _BESIDE_WEIGHTS), _settings)
    return _sha256(part for parts in (*map(_stretches, weights), beside) for part in parts)


def digest_agent(folder: str | Path) -> str:
    """Return the sha256 over what fixes an agent beside its adapter: its settings, schema and router."""
    return _sha256(_files(_there(folder, (AGENT_FILE, SCHEMA_FILE, ROUTER_FILE)), _settings))


def _sha256(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _there(folder: str | Path, names: Iterable[str]) -> list[Path]:
    return [path for name in names if (path := Path(folder) / name).is_file()]


def _files(paths: Iterable[Path], says: Callable[[Mapping[str, Any]], bytes]) -> Iterator[bytes]:
    """Name and content of each file; of a JSON file what it ``says``."""
    for path in paths:
        yield path.name.encode()
        yield says(read_object(path)) if path.suffix == ".json" else path.read_bytes()


def _stretches(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name}:{size}".encode()
    last = max(0, size - _STRETCH)
    with path.open("rb") as file:
        for start in sorted({last * index // (_STRETCHES - 1) for index in range(_STRETCHES)}):
            file.seek(start)
            yield file.read(_STRETCH)


def _settings(config: Mapping[str, Any]) -> bytes:
    """A configuration but for the version of the library that wrote it."""
    return _sorted({name: value for name, value in config.items() if name != "transformers_version"})


def _without_order(config: Mapping[str, Any]) -> bytes:
    """A configuration whose lists of names are sets."""
    return _sorted(
        {
            name: sorted(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value
            for name, value in config.items()
        }
    )


def _sorted(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True).encode()


__all__ = ["digest_adapter", "digest_agent", "digest_model"]
