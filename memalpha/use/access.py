"""Access to a server: ``ServeConfig``, the tokens file, and the caller of a request.

    tokens:
      - {name: marta-laptop, sha256: 9f86d0..., user: marta}                    # any agent and session of marta
      - {name: chat-backend, sha256: 60303a..., any_user: true, agent: chat}    # each request names its user

The file holds SHA-256 hashes, never tokens; comparison takes constant time. A request may set the parts of the namespace that its
token leaves open, by ``HEADERS`` (percent-encoded UTF-8): the user is required, agent and session are ``default`` if absent.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import unquote

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, StrictStr

from memalpha.config import Options, read
from memalpha.errors import InputError
from memalpha.files import load_yaml
from memalpha.store.journal import Namespace
from memalpha.use.messages import Problem, Refused

HEADERS = {part: f"Memalpha-{part.capitalize()}" for part in ("user", "agent", "session")}
"""Header of each part of a namespace."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?/?")
_USUAL_PORTS = {"http": "80", "https": "443"}


def _plain_host(text: str) -> str:
    name = text.lower().strip("[]")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        if not re.fullmatch("[a-z0-9._-]+", text.lower()):
            raise ValueError("a name or an address without a port, such as chat.example") from None
        return name


def _plain_origin(text: str) -> str:
    if text == "null":
        return text
    found = _ORIGIN.fullmatch(text.lower())
    if not found:
        raise ValueError("scheme://name or scheme://name:port, such as https://chat.example")
    scheme, host, port = found.groups()
    return f"{scheme}://{host}" + ("" if port in (None, _USUAL_PORTS.get(scheme)) else f":{port}")


_ONE_OR_MORE = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)


@dataclass(frozen=True, slots=True)
class ServeConfig(Options):
    """Address and limits of a server.

    Attributes:
        host: Address to listen at.
        port: Port; 0 takes a free one.
        allow_host: Further accepted ``Host`` names, without a port; off loopback, if there are none, every name is accepted.
        allow_origin: Origins whose web pages may call the server (``https://chat.example``); on loopback, local pages always may.
        max_body_bytes: Longest request body, in bytes.
        max_text_tokens: Longest text to add, in tokens of the policy; it is read in pieces that fit a prompt.
        max_requests: Concurrent requests; more get 503.
        max_requests_per_token: Concurrent requests of one token; more get 429.
        body_seconds: Time limit to receive a request body, in seconds.
        stop_seconds: Time limit for running requests when the server stops, in seconds.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    allow_host: Annotated[tuple[Annotated[str, AfterValidator(_plain_host)], ...], _ONE_OR_MORE] = ()
    allow_origin: Annotated[tuple[Annotated[str, AfterValidator(_plain_origin)], ...], _ONE_OR_MORE] = ()
    max_body_bytes: PositiveInt = 1_048_576
    max_text_tokens: PositiveInt = 16_384
    max_requests: PositiveInt = 64
    max_requests_per_token: PositiveInt = 16
    body_seconds: PositiveInt = 30
    stop_seconds: PositiveInt = 60

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return _is_loopback(self.host)

    def knows_host(self, header: str) -> bool:
        """Whether a ``Host`` header is accepted; off loopback without ``allow_host``, all are."""
        if not (self.loopback or self.allow_host):
            return True
        found = _HOST.fullmatch(header)
        name = _plain_host(found[1]) if found else ""
        return name in (self.host.lower(), *self.allow_host) or (self.loopback and _is_loopback(name))

    def knows_origin(self, header: str) -> bool:
        """Whether pages of an ``Origin`` may call this server; on loopback, all pages of this machine may."""
        found = _ORIGIN.fullmatch(header)
        return header in self.allow_origin or (self.loopback and found is not None and _is_loopback(found[2]))


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Grant:
    """What a caller may reach; None in a part of the namespace allows any. ``name`` is for the journal and the log."""

    name: str
    user: str | None = None
    agent: str | None = None
    session: str | None = None

    def namespace(self, asked: Mapping[str, str]) -> Namespace:
        """Return the namespace of a request; Refused if it is not allowed (403) or names no user (400)."""
        found = dict(asked)
        for part in HEADERS:
            if (fixed := getattr(self, part)) is not None and found.setdefault(part, fixed) != fixed:
                what = f"{self.name} may not reach the {part} {found[part]!r}"
                raise Refused(Problem(HTTPStatus.FORBIDDEN, what, f"{part} {fixed!r}"))
        if "user" not in found:
            raise Refused(Problem(HTTPStatus.BAD_REQUEST, "no user named", f"whose memory it is, in {HEADERS['user']}"))
        return Namespace(**found)


class Caller(NamedTuple):
    """Sender of a request and the namespace it is about."""

    name: str
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class _Line(Options):
    """A line of the tokens file."""

    name: StrictStr
    sha256: Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")]
    user: StrictStr | None = None
    agent: StrictStr | None = None
    session: StrictStr | None = None
    any_user: bool = False

    def check(self) -> None:
        """Raise InputError unless exactly one of ``user`` and ``any_user`` is set and the names are valid."""
        if self.any_user is (self.user is not None):
            raise InputError(f"{self.name!r} does not say whose memory it reaches", expected="a user, or any_user: true")
        Namespace(*("any" if part is None else part for part in (self.user, self.agent, self.session)))


class Callers:
    """Identifies the sender of a request; ``known`` is one grant for all (local server), or (SHA-256 hex, grant) per token.

    InputError for no token, a duplicate, or a name that is blank or not printable.
    """

    def __init__(self, known: Sequence[tuple[str, Grant]] | Grant) -> None:
        self.local = known if isinstance(known, Grant) else None
        tokens = [] if isinstance(known, Grant) else [(bytes.fromhex(digest), grant) for digest, grant in known]
        if not tokens and self.local is None:
            raise InputError("no token", expected="at least one", fix="memalpha token NAME --user USER makes one")
        if len({digest for digest, _ in tokens}) < len(tokens):
            raise InputError("a token stands there twice", expected="a token of its own for each line")
        names = Counter(grant.name for _, grant in tokens)
        if wrong := [name for name, times in names.items() if times > 1 or not name.strip() or not name.isprintable()]:
            raise InputError(f"the name of a token is {wrong[0]!r}", expected="a printable name of its own for each token")
        self._tokens = tokens

    @classmethod
    def load(cls, path: str | Path) -> Callers:
        """Read a YAML tokens file; InputError if it is not valid."""
        expected = "a list `tokens` of {name, sha256, user}, each optionally with agent and session, or any_user: true"
        try:
            data = load_yaml(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"the tokens file {str(path)!r} cannot be read: {error}", expected=expected) from error
        rows = data.get("tokens") if isinstance(data, dict) and set(data) == {"tokens"} else None
        if not isinstance(rows, list):
            raise InputError(f"the tokens file {str(path)!r} has no list of tokens", expected=expected)
        lines = []
        for number, row in enumerate(rows, 1):
            if isinstance(row, dict) and None in row.values():  # a blank is never taken for "any"
                raise InputError(f"token {number} of {path} has a blank value: {row}", expected=expected)
            lines.append(read(_Line, row, f"token {number} of {path}"))
        return cls([(line.sha256, Grant(line.name, line.user, line.agent, line.session)) for line in lines])

    @property
    def by_token(self) -> bool:
        """Whether requests need a token."""
        return self.local is None

    def grant(self, token: str) -> Grant | None:
        """Return the grant of a token, None if unknown; in constant time."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = [grant for known, grant in self._tokens if hmac.compare_digest(known, digest)]
        return found[0] if found else None

    def identify(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller; Refused for an unknown token (401), a forbidden namespace (403), no user (400)."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        grant = self.local or (self.grant(token.strip()) if scheme.lower() == "bearer" else None)
        if grant is None:
            expected = "the header Authorization: Bearer TOKEN"
            raise Refused(Problem(HTTPStatus.UNAUTHORIZED, "no token that this server knows", expected))
        try:
            asked = {part: _decoded(headers[name.lower()]) for part, name in HEADERS.items() if name.lower() in headers}
            return Caller(grant.name, grant.namespace(asked))
        except InputError as error:
            raise Refused(Problem(HTTPStatus.BAD_REQUEST, error.what, error.expected, error.fix)) from error


def _decoded(value: str) -> str:
    try:
        return unquote(value.encode("ascii").decode("ascii"), errors="strict")
    except UnicodeError as error:
        raise InputError(f"the name {value!r} in a header", expected="percent-encoded UTF-8") from error


def make_token() -> tuple[str, str]:
    """Return a new random token (256 bits) and its SHA-256."""
    token = f"memalpha_{secrets.token_urlsafe(32)}"
    return token, hashlib.sha256(token.encode()).hexdigest()


__all__ = ["HEADERS", "Caller", "Callers", "Grant", "ServeConfig", "make_token"]
