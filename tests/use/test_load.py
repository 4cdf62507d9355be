"""Fifty clients at once, a kill in the middle: every acknowledged write is there (see ``load``)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import load
import pytest


def check(measured):
    assert measured["wrong"] == []
    assert measured["least of a client"] > 0
    assert measured["answers"]["add 200"] >= measured["acknowledged"]
    refused = [answer for answer in measured["answers"] if answer.split()[1].isdecimal() and answer.split()[1] != "200"]
    assert refused == []


@pytest.mark.parametrize(("seconds", "kills"), [(4, 1), pytest.param(120, 4, marks=pytest.mark.slow)])
def test_fifty_clients(tmp_path, seconds, kills):
    check(load.run(tmp_path, seconds=seconds, kills=kills))


@pytest.mark.slow
def test_fifty_clients_over_postgresql(tmp_path):
    from test_postgres import Server

    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            check(load.run(tmp_path, seconds=40, kills=2, store=server.url))
        finally:
            server.stop("immediate")
