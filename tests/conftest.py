"""Fixtures that tests of several packages share. Property tests have no deadline: a loaded machine
is no fault."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from memalpha.threads import prepare_threads
from tests.helpers.faults import FAULTS
from tests.helpers.stub_server import StubServer

prepare_threads()  # before a test imports torch

settings.register_profile("memalpha", deadline=None)
settings.load_profile("memalpha")

_SETTINGS = ("ACCELERATE_", "FSDP_")  # first letters of variables of the environment


def pytest_configure():
    """Plant the fault that MEMALPHA_FAULT names, before any test is imported."""
    name = os.environ.get("MEMALPHA_FAULT")
    if name:
        FAULTS[name].plant(pytest.MonkeyPatch())


@pytest.fixture(autouse=True)
def settings_of_accelerate():
    """Takes back what transformers and accelerate write into the environment for an option, such as
    ``fsdp``: it would change the processes that later tests start."""
    before = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}
    yield
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture(scope="module")
def one_thread():
    """Lets torch use one thread: sums of more threads may differ in their last bits."""
    import torch  # here, for tests that need none

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def chat_server(monkeypatch):
    """A chat server on this machine that answers with the last message, upper-cased, unless told to
    fail."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("MEMALPHA_API_KEY", raising=False)
    server = StubServer()
    yield server
    server.close()


@pytest.fixture
def folder():
    """A folder for stores, in memory where there is one."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None, prefix="memalpha-"
    ) as made:
        yield Path(made)


@pytest.fixture
def make_disk(tmp_path):
    """Makes one small file system of its own, of a size such as ``14m``; skips where none can be
    mounted."""
    disk = tmp_path / "disk"

    def make(size):
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
        if (mounted := subprocess.run(mount, capture_output=True, text=True)).returncode:
            pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
        return disk

    yield make
    if disk.is_mount():
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture(
    scope="module"
)  # not the session: while playwright runs, no other test of the process can use asyncio.run
def browser():
    """A Chromium on this machine, driven by playwright; skips with the reason where one of them is
    missing."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()
