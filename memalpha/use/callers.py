"""Who calls, and whose memory that gives them: bearer tokens, each bound to a namespace or to a part of one.

    tokens:
      - {name: marta-laptop, sha256: 9f86d0..., user: marta}                    # any agent and session of marta
      - {name: chat-backend, sha256: 60303a..., any_user: true, agent: chat}    # names the user of each request

What always holds: the file holds SHA-256 hashes of random tokens, never a token; a token is compared with all of them in constant
time; what a token fixes cannot be asked for otherwise, and names are compared whole, so no namespace of another is ever reached.

What a token leaves open, a request may name by the headers ``Memalpha-User``, ``Memalpha-Agent``, ``Memalpha-Session``
(percent-encoded UTF-8); agent and session are ``default`` else, a user has to be named.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import yaml

from memalpha.errors import InputError
from memalpha.store.journal import Namespace
from memalpha.use.problems import Problem, Refused

PARTS = ("user", "agent", "session")
HEADERS = {part: f"Memalpha-{part.capitalize()}" for part in PARTS}
"""Header that names each part of a namespace."""
_KEYS = {"name", "sha256", "any_user", *PARTS}


@dataclass(frozen=True, slots=True)
class Grant:
    """What a caller may reach.

    Attributes:
        name: Who, for the journal and the log.
        user: The one user; None for any.
        agent: The one agent, or None.
        session: The one session, or None.
    """

    name: str
    user: str | None = None
    agent: str | None = None
    session: str | None = None

    def namespace(self, asked: Mapping[str, str]) -> Namespace:
        """Return the namespace of a request.

        Args:
            asked: The parts it names.

        Raises:
            Refused: If it asks for what this grant does not give (403), or names no user where it has to (400).
        """
        found = {}
        for part in PARTS:
            fixed, wanted = getattr(self, part), asked.get(part)
            if fixed is not None and wanted not in (None, fixed):
                raise Refused(
                    Problem(HTTPStatus.FORBIDDEN, f"{self.name} may not reach the {part} {wanted!r}", f"{part} {fixed!r}")
                )
            if (name := fixed if fixed is not None else wanted) is not None:
                found[part] = name
        if "user" not in found:
            raise Refused(Problem(HTTPStatus.BAD_REQUEST, "no user named", f"whose memory it is, in {HEADERS['user']}"))
        return Namespace(**found)


class Caller(NamedTuple):
    """Who sent a request, and whose memory it is about."""

    name: str
    namespace: Namespace


class Tokens:
    """The tokens a server knows.

    Args:
        hashes: SHA-256 of each token, 64 hexadecimal digits, and what it gives.

    Raises:
        InputError: If there is none, one comes twice, or a name is blank, not printable or comes twice: limits and the journal
            tell them apart by it.
    """

    def __init__(self, hashes: Sequence[tuple[str, Grant]]) -> None:
        if not hashes:
            raise InputError("no token", expected="at least one", fix="memalpha token NAME --user USER makes one")
        if len({digest for digest, _ in hashes}) < len(hashes):
            raise InputError("a token stands there twice", expected="a token of its own for each line")
        names = Counter(grant.name for _, grant in hashes)
        if wrong := [name for name, times in names.items() if times > 1 or not name.strip() or not name.isprintable()]:
            raise InputError(f"the name of a token is {wrong[0]!r}", expected="a printable name of its own for each token")
        self._known = [(bytes.fromhex(digest), grant) for digest, grant in hashes]

    @classmethod
    def load(cls, path: str | Path) -> Tokens:
        """Read a YAML file of tokens; InputError if it is none."""
        expected = "a list `tokens` of {name, sha256, user}, each optionally with agent and session, or any_user: true"
        try:
            data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"the tokens file {str(path)!r} cannot be read: {error}", expected=expected) from error
        rows = data.get("tokens") if isinstance(data, dict) and set(data) == {"tokens"} else None
        if not isinstance(rows, list):
            raise InputError(f"the tokens file {str(path)!r} has no list of tokens", expected=expected)
        return cls([_entry(row, f"token {number} of {path}", expected) for number, row in enumerate(rows, 1)])

    def grant(self, token: str) -> Grant | None:
        """Return what a token gives, or None for an unknown one; takes as long for either."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, grant in self._known:
            if hmac.compare_digest(known, digest):
                found = grant
        return found


def _entry(row: Any, where: str, expected: str) -> tuple[str, Grant]:
    if not isinstance(row, dict) or not {"name", "sha256"} <= set(row) <= _KEYS:
        raise InputError(f"{where} is {row!r}", expected=expected)
    if wrong := [key for key in row if key != "any_user" and not isinstance(row[key], str)]:
        raise InputError(f"{where}: {wrong[0]} is {row[wrong[0]]!r}", expected="a text", fix="put it into quotes")
    if row.get("any_user", False) is not ("user" not in row):
        raise InputError(f"{where} does not say whose memory it reaches", expected="a user, or any_user: true")
    if not re.fullmatch("[0-9a-f]{64}", row["sha256"]):
        raise InputError(f"{where}: sha256 is {row['sha256']!r}", expected="64 hexadecimal digits, as memalpha token prints them")
    Namespace(row.get("user", "any"), row.get("agent", "any"), row.get("session", "any"))  # are these names?
    return row["sha256"], Grant(row["name"], row.get("user"), row.get("agent"), row.get("session"))


class Callers:
    """Tells who sends a request.

    Args:
        known: Tokens, where each request has to carry one; or one grant for all, for a server that nobody else can reach.
    """

    def __init__(self, known: Tokens | Grant) -> None:
        self._known = known

    @property
    def by_token(self) -> bool:
        """Whether requests have to carry a token."""
        return isinstance(self._known, Tokens)

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller of a request.

        Raises:
            Refused: Without a known token (401), for a namespace it does not give (403), or without a user (400).
        """
        grant = self._grant(headers.get("authorization", "")) if isinstance(self._known, Tokens) else self._known
        try:
            asked = {part: _decoded(headers[name.lower()]) for part, name in HEADERS.items() if name.lower() in headers}
            return Caller(grant.name, grant.namespace(asked))
        except InputError as error:
            raise Refused(Problem(HTTPStatus.BAD_REQUEST, error.what, error.expected, error.fix)) from error

    def _grant(self, authorization: str) -> Grant:
        assert isinstance(self._known, Tokens)
        scheme, _, token = authorization.partition(" ")
        grant = self._known.grant(token.strip()) if scheme.lower() == "bearer" else None
        if grant is None:
            raise Refused(
                Problem(
                    HTTPStatus.UNAUTHORIZED,
                    "no token that this server knows",
                    "the header Authorization: Bearer TOKEN",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            )
        return grant


def _decoded(value: str) -> str:
    try:
        return unquote(value.encode("ascii").decode("ascii"), errors="strict")
    except UnicodeError as error:
        raise InputError(f"the name {value!r} in a header", expected="percent-encoded UTF-8") from error


def make_token() -> tuple[str, str]:
    """Return a new random token (256 bits) and its SHA-256."""
    token = f"memalpha_{secrets.token_urlsafe(32)}"
    return token, hashlib.sha256(token.encode()).hexdigest()


__all__ = ["HEADERS", "Caller", "Callers", "Grant", "Tokens", "make_token"]
