"""The settings of a server, as frozen data."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields

from memalpha.errors import InputError

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?/?")
_USUAL_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Where a server listens and what it takes on.

    Attributes:
        host: Address to listen at.
        port: Port; 0 takes a free one.
        hosts: Further names by which clients may address it (``Host``), without a port; off loopback, none means any.
        origins: Origins whose web pages may call it (``https://chat.example``), besides pages of this machine on loopback. Names
            and origins are kept as clients send them: in lower case, an origin without a slash at its end or the usual port.
        max_body_bytes: Longest request body, in bytes.
        max_text_tokens: Longest text to add, in the policy's tokens; it is read in pieces that fit a prompt.
        max_requests: Requests under way at once; more are told to come back (503).
        max_requests_per_token: Requests of one token under way at once; more are told to come back (429).
        body_seconds: Seconds a request's body may take to arrive.
        stop_seconds: Seconds that requests under way have to end once the server is told to stop.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_body_bytes: int = 1_048_576
    max_text_tokens: int = 16_384
    max_requests: int = 64
    max_requests_per_token: int = 16
    body_seconds: int = 30
    stop_seconds: int = 60

    def __post_init__(self) -> None:
        """Check the numbers, names and origins; InputError for one that is out of range or that no client could ever send."""
        for field in fields(self):
            value = getattr(self, field.name)
            least, most = (0, 65_535) if field.name == "port" else (1, 2**40)
            if isinstance(value, int) and not least <= value <= most:
                raise InputError(f"{field.name} is {value}", expected=f"{least} to {most}")
        object.__setattr__(self, "hosts", tuple(map(_host, self.hosts)))
        object.__setattr__(self, "origins", tuple(map(_origin, self.origins)))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine itself."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _host(text: str) -> str:
    """Return a name or address as ``Host`` has it in lower case, without brackets."""
    name = text.lower()
    try:
        return str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        if not re.fullmatch("[a-z0-9._-]+", name):
            raise InputError(f"the host {text!r}", expected="a name or an address without a port, such as chat.example") from None
        return name


def _origin(text: str) -> str:
    """Return an origin as a browser sends it."""
    if text == "null":
        return text
    found = _ORIGIN.fullmatch(text.lower())
    if not found:
        raise InputError(f"the origin {text!r}", expected="scheme://name or scheme://name:port, such as https://chat.example")
    scheme, host, port = found.groups()
    return f"{scheme}://{host}" + ("" if port in (None, _USUAL_PORTS.get(scheme)) else f":{port}")


__all__ = ["ServeConfig", "is_loopback"]
