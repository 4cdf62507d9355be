"""Who may import whom, read from the source: layers run downwards, faiss and trl have their doors, the package imports lightly."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "memalpha"

# From the bottom up. A module belongs to the layer of its longest matching name and imports only from its own and lower ones.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "memalpha.errors",
        "memalpha.types",
        "memalpha.protocols",
        "memalpha.version",
        "memalpha.disk",
        "memalpha.files",
        "memalpha.provenance",
    ),
    (
        "memalpha.memory",
        "memalpha.store",
        "memalpha.data",
        "memalpha.qa.metrics",
        "memalpha.rewards",
        "memalpha.training.advantages",
        "memalpha.runs",
    ),
    (
        "memalpha.retrieval",
        "memalpha.store.indexed",
        "memalpha.routing.sections",
        "memalpha.routing.checkpoints",
        "memalpha.routing.policies",
        "memalpha.routing.ppo",
    ),
    ("memalpha.agent",),
    ("memalpha.generation", "memalpha.qa", "memalpha.models"),
    ("memalpha.training", "memalpha.evaluation", "memalpha.routing"),
    ("memalpha.report", "memalpha.api"),
    ("memalpha.serve",),
    ("memalpha.cli", "memalpha.__main__", "memalpha"),
)

# Who alone may import a library.
DOORS: Mapping[str, frozenset[str]] = {
    "faiss": frozenset({"memalpha.retrieval.index"}),
    "trl": frozenset({"memalpha.training.trainer", "memalpha.training.config", "memalpha.training.sampling"}),
    "psycopg": frozenset({"memalpha.store.postgres"}),
    "qdrant_client": frozenset({"memalpha.retrieval.qdrant"}),
    "fastapi": frozenset({"memalpha.serve.http_api", "memalpha.serve.server"}),
    "mcp": frozenset({"memalpha.serve.mcp_tools", "memalpha.serve.server"}),
    "uvicorn": frozenset({"memalpha.serve.server"}),
    "mem0": frozenset({"memalpha.evaluation.systems.mem0_package"}),
    "gymnasium": frozenset({"memalpha.routing.env"}),
}

HEAVY = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "faiss", "sentence_transformers", "matplotlib", "numpy")


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _runs(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below one that exists at run time: the bodies of ``if TYPE_CHECKING`` are left out, functions' bodies are not."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield child
        yield from _runs(child)


def imports(path: Path, package: Path) -> list[str]:
    """Full names of what a file imports: modules, and ``module.name`` for ``from module import name``."""
    name = module_name(path, package)
    own = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = []
    for node in _runs(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = own.split(".")[: len(own.split(".")) - node.level + 1]
                base = ".".join([*anchor, *([base] if base else [])])
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def layer(name: str) -> int | None:
    """Layer of a module; None for one that LAYERS does not name."""
    while name:
        for height, members in enumerate(LAYERS):
            if name in members:
                return height
        name = name.rpartition(".")[0]
        if name == "memalpha":  # the package itself stands for nothing but its own __init__
            return None
    return None


def graph(package: Path) -> dict[str, set[str]]:
    """For each module, the modules of the package that it imports."""
    files = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    edges: dict[str, set[str]] = {}
    for name, path in files.items():
        edges[name] = set()
        for target in imports(path, package):
            if target.split(".")[0] == package.name:
                edges[name].add(target if target in files else target.rpartition(".")[0])
    return edges


def faults(package: Path) -> list[str]:
    """Everything in a package that breaks a rule of this file, one line each."""
    edges = graph(package)
    found = []
    for name, targets in edges.items():
        if layer(name) is None:
            found.append(f"{name} is in no layer")
            continue
        for target in sorted(targets):
            height = layer(target)
            if height is None or height > layer(name):
                found.append(f"{name} imports {target}, which is above it")
    for path in sorted(package.rglob("*.py")):
        name = module_name(path, package)
        for library in {target.split(".")[0] for target in imports(path, package)} & DOORS.keys():
            if name not in DOORS[library]:
                found.append(f"{name} imports {library}")
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found.append(f"import cycle: {' -> '.join(error.args[1])}")
    return found


def test_imports_run_downwards_and_through_their_doors() -> None:
    assert faults(PACKAGE) == []


def test_every_import_of_the_package_was_read() -> None:
    edges = graph(PACKAGE)
    assert edges["memalpha.memory.store"] >= {"memalpha.types", "memalpha.memory.schema"}
    assert "memalpha.memory.store" not in edges["memalpha.protocols"]  # for annotations only


PLANTED = [
    (
        "memory/store.py",
        "from memalpha.agent.step import x",
        "memalpha.memory.store imports memalpha.agent.step, which is above it",
    ),
    ("memory/store.py", "def f():\n    from memalpha import cli", "memalpha.memory.store imports memalpha.cli, which is above it"),
    ("qa/metrics.py", "from .readers import x", "memalpha.qa.metrics imports memalpha.qa.readers, which is above it"),
    ("memory/store.py", "try:\n    import faiss.contrib\nexcept ImportError:\n    pass", "memalpha.memory.store imports faiss"),
    ("training/warmup.py", "from trl import GRPOTrainer", "memalpha.training.warmup imports trl"),
    ("novel.py", "", "memalpha.novel is in no layer"),
    ("memory/schema.py", "import memalpha.memory.store", "import cycle"),
    ("memory/store.py", "if TYPE_CHECKING:\n    from memalpha.cli import main", None),
    ("retrieval/index.py", "import faiss", None),
]


@pytest.mark.parametrize(("file", "source", "fault"), PLANTED)
def test_a_planted_import_is_found(tmp_path: Path, file: str, source: str, fault: str | None) -> None:
    package = tmp_path / "memalpha"
    files = {
        "__init__.py": "",
        "cli.py": "import memalpha.agent.step",
        "memory/store.py": "from memalpha.memory import schema",
        "memory/schema.py": "import json",
        "qa/metrics.py": "",
        "qa/readers.py": "from memalpha.qa.metrics import x",
        "agent/step.py": "from memalpha.memory.store import Memory",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert faults(package) == []
    (package / file).parent.mkdir(parents=True, exist_ok=True)
    (package / file).write_text(files.get(file, "") + "\n" + source)
    found = faults(package)
    assert (found == []) if fault is None else any(line.startswith(fault) for line in found)


SNIPPET = """
import sys, time
began = time.process_time()
import {module}
print(time.process_time() - began, *sorted({heavy} & sys.modules.keys()))
"""


@pytest.mark.parametrize("module", ["memalpha", "memalpha.types, memalpha.errors, memalpha.memory.store, memalpha.models"])
def test_importing_the_package_is_quick_and_brings_nothing_heavy(module: str) -> None:
    code = SNIPPET.format(module=module, heavy=set(HEAVY))
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert said[1:] == []
    assert float(said[0]) < 1.0
