"""Fixtures that tests of several packages share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from stub_server import StubServer


@pytest.fixture
def chat_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    """A chat server on this machine that answers with the last message, upper-cased, unless told to fail."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("MEMALPHA_API_KEY", raising=False)
    server = StubServer()
    yield server
    server.close()
