"""Fixtures that tests of several packages share. Property tests have no deadline: a loaded machine is no fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from stub_server import StubServer

settings.register_profile("memalpha", deadline=None)
settings.load_profile("memalpha")


@pytest.fixture
def chat_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    """A chat server on this machine that answers with the last message, upper-cased, unless told to fail."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("MEMALPHA_API_KEY", raising=False)
    server = StubServer()
    yield server
    server.close()
