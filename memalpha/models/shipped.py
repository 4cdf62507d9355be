"""The adapters that ship with the project, by name: what they need, where they lie, and how they
come into the cache. They are part of a checkout (``data/adapters``) and of no wheel.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from memalpha.errors import InputError
from memalpha.files import file_sha256, load_yaml, path_of, replacing_folder
from memalpha.hub import HUB_NAME, fetch_repository
from memalpha.models.adapters import ADAPTER_CONFIG
from memalpha.models.pypi import fetch_base
from memalpha.models.registry import MODELS, adapters_dir
from memalpha.types import EventReport, silent


class ShippedAdapter(NamedTuple):
    """A shipped adapter: its base, the reader that it names ("" if none), its files' sha256."""

    base: str
    reader: str
    files: Mapping[str, str]


_TABLE = Path(__file__).with_name("shipped.yaml")
ADAPTERS = {
    name: ShippedAdapter(**row)
    for name, row in load_yaml(_TABLE.read_text(encoding="utf-8")).items()
}
_CHECKOUT = Path(__file__).resolve().parents[2] / "data" / "adapters"  # a wheel has none
# the only files that are fetched of an agent on the Hub: never code
_AGENT_FILES = (
    "*.json",
    "*.safetensors",
    "*.jinja",
    "*.txt",
    "*.model",
    "memalpha_schema.yaml",
)
_FORMS = "the adapter's folder, a folder of adapters, a checkout, or a Hub name owner/name"


def resolve_adapter(name_or_path: str | Path) -> Path:
    """Return the folder of an adapter or whole model: this one, that of a shipped adapter by name,
    or that of a repository of the Hub, fetched without code.

    InputError if there is none; ServiceError if the Hub does not answer.
    """
    text = str(name_or_path)
    expected = (
        "a folder that memalpha train or memalpha warmup wrote, a Hub name owner/name or "
        f"owner/name@revision, or one of: {', '.join(ADAPTERS)}"
    )
    path = path_of(text or "no name", expected)
    if text and path.is_dir():
        return path
    if text in ADAPTERS:
        return _folder_of(text)
    if isinstance(name_or_path, Path) or not is_on_hub(text):
        raise InputError(f"there is no adapter and no trained agent at {text!r}", expected=expected)
    return fetch_repository(text, _AGENT_FILES)


def is_on_hub(text: str) -> bool:
    """Whether a text can only be a name of the Hub, since its first part is no folder here."""
    return bool(HUB_NAME.fullmatch(text)) and not Path(text.partition("/")[0]).exists()


def _home(name: str) -> Path:
    """The folder that a name stands for: a checkout's where it is there, else the cache's."""
    in_checkout = _CHECKOUT / name
    return in_checkout if (in_checkout / ADAPTER_CONFIG).is_file() else adapters_dir() / name


def _folder_of(name: str) -> Path:
    folder = _home(name)
    if (folder / ADAPTER_CONFIG).is_file():
        return folder
    raise InputError(
        f"the adapter {name!r} is not on this machine",
        expected=f"its files in {adapters_dir() / name}",
        fix=f"memalpha fetch {name} --from FOLDER (a folder that holds it), or --from OWNER/NAME",
    )


# ------------------------------------------------------------------------------------------------
# into the cache
def fetch(name: str, source: str = "", report: EventReport = silent) -> Path:
    """Return the folder of a registered model or a shipped adapter, fetched unless it is there.

    An adapter comes from ``source``, a folder or a Hub name, with its reader and its base; an empty
    text means the checkout of an installation from one. InputError if the name is unknown, or a
    file is missing or has another digest; nothing is left behind then. MissingExtraError and
    ServiceError as ``fetch_base``.
    """
    check_fetchable(name)
    return _fetch_adapter(name, source, report) if name in ADAPTERS else fetch_base(name, report)


def check_fetchable(name: str) -> None:
    """Raise InputError unless a registered model or a shipped adapter has this name."""
    if name not in ADAPTERS and name.partition("@")[0] not in MODELS:
        raise InputError(
            f"memalpha has nothing called {name!r} to fetch",
            expected=f"one of: {', '.join([*MODELS, *ADAPTERS])}",
        )


def _fetch_adapter(name: str, source: str, report: EventReport) -> Path:
    base, reader, _ = ADAPTERS[name]
    missing = [each for each in (name, reader) if each and not _is_here(each)]
    places = {}
    if missing:
        root = _root(name, source, missing)
        places = {each: _place(each, name, root) for each in missing}
    with ExitStack() as stack:  # all of them or none; the reader is there first
        for each, place in places.items():
            report("fetch", {"what": f"{each} from {place}"})
            _copy(each, place, stack.enter_context(replacing_folder(adapters_dir() / each)))
    fetch_base(base, report)
    return _folder_of(name)


def _is_here(name: str) -> bool:
    """Whether the folder that the name stands for is whole; InputError if a checkout's is not."""
    folder = _home(name)
    for file, digest in ADAPTERS[name].files.items():
        if not (folder / file).is_file() or file_sha256(folder / file) != digest:
            if folder.parent == _CHECKOUT:
                raise InputError(
                    f"{folder / file} is not the file that was shipped",
                    expected=f"sha256 {digest}",
                    fix=f"git checkout {folder}",
                )
            return False
    return True


def _root(name: str, source: str, missing: Sequence[str]) -> Path:
    """The folder below which the files of the missing adapters are looked for."""
    if not source:
        if not _CHECKOUT.is_dir():
            raise InputError(
                f"{name} cannot be fetched without --from: the adapters of memalpha have no "
                "address on the Hub yet",
                expected="--from FOLDER or --from OWNER/NAME",
                fix=f"give {_FORMS}",
            )
        return _CHECKOUT
    if Path(source).is_dir():
        return Path(source)
    if not is_on_hub(source):
        raise InputError(f"--from is {source!r}, which is no folder", expected=_FORMS)
    patterns = [
        f"{prefix}{file}"
        for each in missing
        for file in ADAPTERS[each].files
        for prefix in ("", f"{each}/", f"data/adapters/{each}/")
    ]
    return fetch_repository(source, patterns)


def _place(each: str, name: str, root: Path) -> Path:
    """The folder of ``each``, which is ``name`` or its reader; InputError if it is not there."""
    alone = root if each == name else root.resolve().parent / each
    for place in (root / "data" / "adapters" / each, root / each, alone):
        if (place / ADAPTER_CONFIG).is_file():
            return place
    if each == name:
        raise InputError(f"there is no adapter {name!r} in {root}", expected=_FORMS)
    raise InputError(
        f"{name} needs its reader {each}, which is neither in {root} nor beside it",
        expected="a folder, checkout or repository with both",
        fix=f"memalpha fetch {each} --from FOLDER, then the same command again",
    )


def _copy(name: str, place: Path, target: Path) -> None:
    for file, digest in ADAPTERS[name].files.items():
        if not (place / file).is_file():
            raise InputError(
                f"{place} has no {file}", expected=f"all files of {name}", fix="copy it again"
            )
        shutil.copyfile(place / file, target / file)
        actual = file_sha256(target / file)
        if actual != digest:
            raise InputError(
                f"{place / file} has sha256 {actual}; nothing was fetched",
                expected=f"sha256 {digest}",
                fix=f"take {name} from a checkout of this version of memalpha",
            )
