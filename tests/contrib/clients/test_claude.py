"""Claude's memory tool: the same answers as the package's own backend in a folder, command by
command; and a history that can be undone and forgotten."""

import asyncio
import random
import re

import pytest
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool

from memalpha.clients import AsyncClaudeMemory, ClaudeMemory

NAMES = ["a.md", "b.txt", "dir/c.md", "dir/sub/d.md", "./a.md", "dir/../b.txt", ".hidden", "dir"]
PATHS = ["/memories", *(f"/memories/{name}" for name in NAMES), "/memories/dir/", "/etc/x"]
TEXTS = [
    "",
    "one",
    "one\ntwo\n",
    "  spaced \n\n",
    "one\none\n",
    "x" * 3000,
    "tea\ncoffee\ntea time\n",
]


def answer(tool, command):
    try:
        told = tool.call(command)
    except ToolError as error:
        told = f"error: {error}"
    told = re.sub(
        r"^\S+\t(/\S*/|/memories|/memories/dir)$", r"\1", told, flags=re.M
    )  # folders' sizes
    return told.replace(" and node_modules:", ":")


def some_command(random):
    path = random.choice(PATHS)
    kind = random.choice(
        ["view", "view", "create", "create", "str_replace", "insert", "rename", "delete"]
    )
    more = {
        "view": {"view_range": random.choice([None, [1, 2], [2, -1], [0, 1], [5, 9]])},
        "create": {"file_text": random.choice(TEXTS)},
        "str_replace": {
            "old_str": random.choice(["one", "two", "tea", "nothing"]),
            "new_str": random.choice(["three", "tea\nand more", ""]),
        },
        "insert": {
            "insert_line": random.choice([-1, 0, 1, 2, 9]),
            "insert_text": random.choice(["new", "new\n", "two\nlines\n\n"]),
        },
        "delete": {},
    }
    if kind == "rename":
        return {"command": kind, "old_path": path, "new_path": random.choice(PATHS)}
    return {"command": kind, "path": path, **more[kind]}


@pytest.mark.parametrize("seed", range(6))
def test_each_command_is_answered_as_by_the_packages_own_backend(tmp_path, seed):
    ours = ClaudeMemory(tmp_path / "m.db", "marta")
    theirs = BetaLocalFilesystemMemoryTool(str(tmp_path))
    draw = random.Random(seed)
    for _ in range(150):
        command = some_command(draw)
        try:
            expected = answer(theirs, command)
        except (OSError, ValueError):  # what their backend does not catch: a file as a folder
            with pytest.raises(ToolError):
                ours.call(command)
            continue
        for folder in sorted(theirs.memory_root.rglob("*"), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()  # ours has no empty folders
        assert answer(ours, command) == expected, command
    whole = {"command": "view", "path": "/memories"}
    again = ClaudeMemory(tmp_path / "m.db", "marta")
    assert answer(again, whole) == answer(theirs, whole)
    assert again.store.journal.verify().ok


@pytest.mark.parametrize(
    "path",
    ["/memories/../x", "/memories/a/../../x", "/memoriesx", "memories/a", "/memories/a\nb", ""],
)
def test_a_path_outside_is_refused_by_every_command(tmp_path, path):
    tool = ClaudeMemory(tmp_path / "m.db", "marta")
    for command in (
        {"command": "view", "path": path},
        {"command": "create", "path": path, "file_text": "x"},
        {"command": "delete", "path": path},
        {"command": "rename", "old_path": path, "new_path": "/memories/a"},
        {"command": "rename", "old_path": "/memories/a", "new_path": path},
    ):
        with pytest.raises(ToolError, match=r"^Path "):
            tool.call(command)
    assert tool.store.history(namespace=tool.namespace) == []


FILE = {"path": "/memories/a.md"}


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ({"command": "create", **FILE}, "file_text: Field required"),
        ({"command": "create", **FILE, "file_text": None}, "file_text: Input should be a valid"),
        ({"command": "create", **FILE, "file_text": 5}, "file_text: Input should be a valid"),
        (
            {"command": "create", **FILE, "file_text": "\ud800"},
            "no Unicode text",
        ),
        ({"command": "create", "path": 5, "file_text": "x"}, "path: Input should be a valid"),
        ({"command": "str_replace", **FILE, "old_str": "one"}, "new_str: Field required"),
        ({"command": "insert", **FILE, "insert_line": 0}, "insert_text: Field required"),
        ({"command": "insert", **FILE, "insert_line": 0.5, "insert_text": "x"}, "insert_line: "),
        ({"command": "view"}, "path: Field required"),
        ({"command": "rename", "old_path": "/memories/a.md"}, "new_path: Field required"),
        ({"command": "erase", **FILE}, "Unknown command: 'erase'"),
        ({}, "Unknown command: 'None'"),
        ("view", "Unknown command: 'None'"),
    ],
)
def test_a_command_that_lacks_a_field_changes_nothing_and_says_so(tmp_path, command, says):
    memory = ClaudeMemory(tmp_path / "m.db", "marta")
    memory.call({"command": "create", "path": "/memories/b.md", "file_text": "one"})
    before = memory.store.history(namespace=memory.namespace)
    with pytest.raises(ToolError, match=re.escape(says)):
        memory.call(command)
    assert memory.store.history(namespace=memory.namespace) == before


def test_a_command_is_one_operation_that_undo_takes_back_and_forget_erases(tmp_path):
    tool = ClaudeMemory(tmp_path / "m.db", "marta")

    def call(command, path, **more):
        return tool.call({"command": command, "path": f"/memories/{path}", **more})

    for name in ("dir/a.md", "dir/b.md"):
        call("create", name, file_text=f"secret zebra of {name}\n")
    tool.call({"command": "rename", "old_path": "/memories/dir", "new_path": "/memories/new"})
    history = tool.store.history(namespace=tool.namespace)
    assert [(event.seq, event.entry) for event in history] == [
        (1, "1"),
        (2, "2"),
        (3, "1"),
        (4, "2"),
    ]
    tool.store.undo(3, namespace=tool.namespace)  # and with it the whole rename
    assert "secret zebra of dir/b.md" in call("view", "dir/b.md")
    call("delete", "dir")
    with pytest.raises(ToolError, match="does not exist"):
        call("view", "dir")
    for entry in ("1", "2"):
        tool.store.forget(entry, namespace=tool.namespace)
    tool.store.close()
    assert all(b"zebra" not in path.read_bytes() for path in tmp_path.iterdir())


def test_the_asynchronous_tool_and_what_a_request_names_are_the_same(tmp_path):
    tool = AsyncClaudeMemory(ClaudeMemory(tmp_path / "m.db", "marta"))
    assert tool.to_dict() == {"type": "memory_20250818", "name": "memory"} and tool.name == "memory"
    create = {"command": "create", "path": "/memories/a", "file_text": "x"}
    assert asyncio.run(tool.call(create)) == "File created successfully at: /memories/a"
    assert "     1\tx" in tool.memory.call({"command": "view", "path": "/memories/a"})
