"""The settings of a server, as frozen data."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields

from memalpha.errors import InputError


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Where a server listens and what it takes on.

    Attributes:
        host: Address to listen at.
        port: Port; 0 takes a free one.
        hosts: Further names by which clients may address it (``Host``); off loopback, none means any.
        origins: Origins whose web pages may call it (``https://chat.example``), besides pages of this machine on loopback.
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
        """Check the numbers; InputError if one is out of range."""
        for field in fields(self):
            value = getattr(self, field.name)
            least, most = (0, 65_535) if field.name == "port" else (1, 2**40)
            if isinstance(value, int) and not least <= value <= most:
                raise InputError(f"{field.name} is {value}", expected=f"{least} to {most}")

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


__all__ = ["ServeConfig", "is_loopback"]
