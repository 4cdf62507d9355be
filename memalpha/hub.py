"""Repositories of the Hugging Face Hub, fetched by name."""

import re
from collections.abc import Sequence
from pathlib import Path

from memalpha.errors import InputError, ServiceError

HUB_NAME = re.compile(r"[^./~@][^/@]*/[^/@]+(@.*)?")
"""``owner/name`` or ``owner/name@revision``."""


def fetch_repository(
    text: str,
    patterns: Sequence[str],
    expected: str = "the name of a repository that can be read",
) -> Path:
    """Return the folder of a repository's files of some patterns, offline of those in the cache.

    InputError if the Hub has no such name; ServiceError if it does not answer.
    """
    from huggingface_hub import errors, snapshot_download

    name, _, revision = text.partition("@")
    unknown = (
        errors.RepositoryNotFoundError,
        errors.RevisionNotFoundError,
        errors.HFValidationError,
    )
    try:
        folder = snapshot_download(name, revision=revision or None, allow_patterns=list(patterns))
    except unknown as error:
        raise InputError(
            f"the Hugging Face Hub has no {text!r}",
            expected=expected,
            fix="check the spelling; log in (`hf auth login`) if it is private",
        ) from error
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        raise ServiceError(
            f"{name} could not be fetched from the Hub: {str(error).splitlines()[0]}",
            fix="give the folder of a copy on this machine",
        ) from error
    return Path(folder)
