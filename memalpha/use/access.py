"""Access to a server: its options, the tokens file, and the caller of a request.

    tokens:
      - {name: marta-laptop, sha256: 9f86d0..., user: marta}  # any agent and session of hers
      - {name: chat-backend, sha256: 60303a..., any_user: true, agent: chat}  # a user a request

A request may set the parts of the namespace that its token leaves open, by ``HEADERS``
(percent-encoded UTF-8).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote

from pydantic import Field, PositiveInt, StrictStr

from memalpha.config import Options, make_options, read_yaml
from memalpha.errors import InputError
from memalpha.store.journal import Namespace
from memalpha.types import JsonObject

HEADERS = {part: f"Memalpha-{part.capitalize()}" for part in ("user", "agent", "session")}
_SCHEMES = ("bearer", "token")  # of Authorization; the second is Mem0's
API_KEY = "X-API-Key"  # header of a token, as Mem0's own server takes it, where there is no other
CALLER = "memalpha.caller"  # key of the Caller in an ASGI scope
_SHA256 = re.compile("[0-9a-f]{64}")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@*A-Z\s]+|null")
_PLACE = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://)?([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.IGNORECASE
)


@dataclass(eq=False)
class Problem(Exception):
    """A reason for which a request is not carried out (RFC 9457): status and title, the problem,
    the expected value, and a way to fix it.
    """

    status: int
    what: str
    expected: str = ""
    fix: str = ""
    title: str = ""

    def body(self) -> JsonObject:
        """Return the JSON object."""
        given = {name: value for name, value in asdict(self).items() if value}
        return {"title": HTTPStatus(self.status).phrase, **given, "status": int(self.status)}


@dataclass(frozen=True, slots=True)
class ServeConfig(Options):
    """Address and limits of a server.

    Attributes:
        host: The server listens at this address.
        port: The server listens at this port; 0 takes a free one.
        allow_host: The server also accepts these ``Host`` names, given without a port. A server
            that listens beyond this machine accepts every name if the list is empty.
        allow_origin: Web pages of these origins may call the server, written as browsers send them
            (``https://chat.example``).
        max_body_bytes: The body of a request has at most this many bytes.
        max_text_tokens: A text to add has at most this many tokens of the policy. It is read in
            pieces that fit a prompt.
        max_requests: The server answers at most this many requests at a time; more get status 503.
        body_seconds: The server waits at most this many seconds for the body of a request.
        stop_seconds: A server that stops waits at most this many seconds for running requests.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    allow_host: tuple[str, ...] = ()
    allow_origin: tuple[str, ...] = ()
    max_body_bytes: PositiveInt = 1_048_576
    max_text_tokens: PositiveInt = 16_384
    max_requests: PositiveInt = 64
    body_seconds: PositiveInt = 30
    stop_seconds: PositiveInt = 60

    def check(self) -> None:
        """Raise InputError for a name of a host or an origin that no request has."""
        for name in self.allow_host:
            if not _is_host(name):
                raise InputError(
                    f"allow_host holds {name!r}",
                    expected="the name of a host without scheme and port",
                )
        for origin in self.allow_origin:
            if not _ORIGIN.fullmatch(origin):
                raise InputError(
                    f"allow_origin holds {origin!r}",
                    expected="an origin as browsers send it, such as https://chat.example, "
                    "without a path, in small letters",
                )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return _is_loopback(self.host)

    def knows_host(self, header: str) -> bool:
        """Whether a ``Host`` header is accepted; off loopback without ``allow_host``, all are."""
        name = _host_in(header)
        known = {host.lower().strip("[]") for host in (self.host, *self.allow_host)}
        return (
            not (self.loopback or self.allow_host)
            or name in known
            or (self.loopback and _is_loopback(name))
        )

    def knows_origin(self, header: str) -> bool:
        """Whether pages of an ``Origin`` may call this server; on loopback, all pages of this
        machine may.
        """
        return header in self.allow_origin or (
            self.loopback and "://" in header and _is_loopback(_host_in(header))
        )


def _host_in(header: str) -> str:
    place = _PLACE.fullmatch(header)
    return place[1].lower().strip("[]") if place else ""


def _is_host(name: str) -> bool:
    """Whether a text is the name or the address of a host."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return re.fullmatch(r"[\w.-]+", name, re.ASCII) is not None
    return True


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Caller(NamedTuple):
    """Sender of a request and the namespace it is about."""

    name: str
    namespace: Namespace


@dataclass(frozen=True, slots=True)
class Grant(Options):
    """The rights of one caller, which are a line of the tokens file.

    Attributes:
        name: The journal records the caller by this name.
        user: The caller reaches the memories of this user; None needs ``any_user``.
        agent: The caller reaches this agent's memories alone; None allows any agent.
        session: The caller reaches this session's memories alone; None allows any session.
        any_user: If true, each request of the caller names the user.
        sha256: The token has this SHA-256 in hexadecimal. An empty text is the local caller, who
            has no token.
    """

    name: StrictStr
    user: StrictStr | None = None
    agent: StrictStr | None = None
    session: StrictStr | None = None
    any_user: bool = False
    sha256: Annotated[StrictStr, Field(pattern="^([0-9a-f]{64})?$")] = ""

    def check(self) -> None:
        """Raise InputError for a grant without a clear reach."""
        if not self.name.strip() or not self.name.isprintable():
            raise InputError(
                f"the name of a token is {self.name!r}",
                expected="the name of the caller in printable characters",
            )
        if self.any_user is (self.user is not None):
            raise InputError(
                f"the token {self.name!r} does not say whose memory it reaches",
                expected="a user, or any_user: true",
            )
        parts = (self.user, self.agent, self.session)
        Namespace(*("any" if part is None else part for part in parts))  # checks them

    @property
    def fixed(self) -> dict[str, str]:
        """The parts of a namespace that a request cannot choose."""
        return {part: getattr(self, part) for part in HEADERS if getattr(self, part) is not None}

    def allowed(self, asked: Mapping[str, str]) -> dict[str, str]:
        """Return the parts of a namespace that the token or a request sets; Problem (403) for one
        that is not that of the token.
        """
        check_namespace_parts(asked, self.fixed, self.name)
        return {**self.fixed, **asked}

    def namespace(self, asked: Mapping[str, str]) -> Namespace:
        """Return the namespace of a request; Problem if it is not allowed (403) or names no user
        (400).
        """
        parts = self.allowed(asked)
        if "user" not in parts:
            raise Problem(
                HTTPStatus.BAD_REQUEST, "no user named", f"whose memory it is, in {HEADERS['user']}"
            )
        return Namespace(**parts)


def check_namespace_parts(asked: Mapping[str, str], pinned: Mapping[str, str], who: str) -> None:
    """Raise a Problem (403) if a request asks for another part of a namespace than is pinned."""
    for part, name in pinned.items():
        if asked.get(part, name) != name:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"{who} may not reach the {part} {asked[part]!r}",
                f"the {part} {name!r}, to which --user, --agent, --session or a token binds it",
            )


class Callers:
    """Identifies the sender of a request; ``known`` is one grant for all (a local server), or a
    grant per token.
    """

    def __init__(self, known: Sequence[Grant] | Grant) -> None:
        self.local = known if isinstance(known, Grant) else None
        grants = [] if isinstance(known, Grant) else known
        if not grants and self.local is None:
            raise InputError(
                "the tokens file holds no token",
                expected="at least one",
                fix="make one with memalpha token NAME --user USER",
            )
        names = {value for grant in grants for value in (grant.sha256, grant.name)}
        if len(names) < 2 * len(grants):
            raise InputError(
                "a token or a name stands in the tokens file twice",
                expected="a different token and name on each line",
            )
        self._tokens = [(bytes.fromhex(grant.sha256), grant) for grant in grants]

    @classmethod
    def load(cls, path: str | Path) -> Callers:
        """Read a YAML tokens file; InputError if it is not valid."""
        rows: Any = read_yaml(Path(path)).get("tokens")
        # no value is shown: it may be the token itself
        for at, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
            blank = not isinstance(row, dict) or None in row.values()  # never taken for "any"
            if blank or not row.get("sha256"):
                raise InputError(
                    f"token {at} of {path} has a blank value or no sha256, or the file has "
                    "no list of tokens",
                    expected="a list `tokens` of {name, sha256, user}, each optionally with agent "
                    "and session, or any_user: true",
                )
            if not _SHA256.fullmatch(str(row["sha256"])):
                raise InputError(
                    f"the sha256 of token {at} of {path} is not a SHA-256",
                    expected="64 characters of 0-9 and a-f, as memalpha token prints it",
                )
        return cls(
            [make_options(Grant, row, f"token {at} of {path}") for at, row in enumerate(rows, 1)]
        )

    def grant(self, token: str) -> Grant | None:
        """Return the grant of a token, None if unknown; in constant time."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        same = [grant for known, grant in self._tokens if hmac.compare_digest(known, digest)]
        return same[0] if same else None

    def granted(self, headers: Mapping[str, str]) -> Grant:
        """Return the grant of a request's token; Problem for an unknown one (401)."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() not in _SCHEMES:
            token = headers.get(API_KEY.lower(), "")
        grant = self.local or (self.grant(token.strip()) if token else None)
        if grant is None:
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "no token that this server knows",
                "the header Authorization: Bearer TOKEN",
            )
        return grant

    def pinned(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the parts of the namespace that a request's token or headers set; Problem for an
        unknown token (401) or a part that the token does not reach (403).
        """
        return self.granted(headers).allowed(_in_headers(headers))

    def identify(
        self, headers: Mapping[str, str], named: Mapping[str, str] | None = None
    ) -> Caller:
        """Return the caller; Problem for an unknown token (401), a forbidden namespace (403), no
        user (400). What a request has ``named`` must agree with its headers (403).
        """
        grant = self.granted(headers)
        parts = self.pinned(headers)
        check_namespace_parts(named or {}, parts, grant.name)
        try:
            return Caller(grant.name, grant.namespace({**(named or {}), **parts}))
        except InputError as error:
            raise Problem(HTTPStatus.BAD_REQUEST, error.what, error.expected, error.fix) from error


def _in_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The parts of a namespace that headers name."""
    asked = {}
    for part, header in HEADERS.items():
        if header.lower() in headers:
            try:
                name = headers[header.lower()].encode("ascii").decode()
                asked[part] = unquote(name, errors="strict")
            except UnicodeError as error:
                raise Problem(
                    HTTPStatus.BAD_REQUEST, f"the name in {header}", "percent-encoded UTF-8"
                ) from error
    return asked


def make_token() -> tuple[str, str]:
    """Return a new random token (256 bits) and its SHA-256."""
    token = f"memalpha_{secrets.token_urlsafe(32)}"
    return token, hashlib.sha256(token.encode()).hexdigest()
