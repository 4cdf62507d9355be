"""Tests that are ``async def`` run on asyncio, by the plugin of anyio."""

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"
