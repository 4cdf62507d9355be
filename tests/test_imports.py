"""Who may import whom, read from the source: layers run downwards, faiss and trl have their doors,
the package imports lightly."""

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import memalpha
import memalpha.clients

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "memalpha"

# Rooms (packages, and files beside them) from the bottom up. A room imports only from rooms on
# lower floors: rooms form no cycle.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("credentials", "errors", "signals", "threads", "types"),
    ("files", "hub", "plugins", "sandbox", "upstream"),
    ("config", "http", "text"),
    ("speakers",),
    ("endpoints", "memory", "units"),
    ("conversation",),
    ("retrieval",),
    ("agent",),
    ("generation", "qa"),
    ("rewards",),
    ("record",),
    ("data",),
    ("models", "update"),
    ("training", "store"),
    ("measure", "use"),
    ("cli", "clients"),
    (
        "contrib",
        "contrib.asker",
        "contrib.audit",
        "contrib.benchmarks",
        "contrib.clients",
        "contrib.credit",
        "contrib.importing",
        "contrib.router",
    ),
    ("__main__", "memalpha"),
)

LEVELS = {name: height for height, rooms in enumerate(FLOORS) for name in rooms}

# Who alone may import a library.
DOORS: Mapping[str, frozenset[str]] = {
    "faiss": frozenset({"memalpha.retrieval.dense"}),
    "trl": frozenset(f"memalpha.training.{name}" for name in ("config", "loss", "trainer"))
    | {"memalpha.upstream"},
    "psycopg": frozenset({"memalpha.store.database"}),
    "sqlalchemy": frozenset({"memalpha.store.database"}),
    "fastapi": frozenset({"memalpha.use.api", "memalpha.use.server"}),
    "mcp": frozenset({"memalpha.use.api", "memalpha.use.server"}),
    "uvicorn": frozenset({"memalpha.use.server"}),
    "anthropic": frozenset({"memalpha.contrib.clients.claude"}),
    "langgraph": frozenset({"memalpha.contrib.clients.langgraph"}),
    "openai": frozenset({"memalpha.contrib.clients.openai"}),
    "vllm": frozenset({"memalpha.generation.vllm_process"}),
}

HEAVY = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "faiss",
    "sentence_transformers",
    "matplotlib",
    "numpy",
)


def module_name(path, package):
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """Full names of what a file imports at run time: modules, and ``module.name`` for ``from module
    import name``; what is below ``if TYPE_CHECKING`` is left out."""
    found, tree = [], ast.parse(path.read_text(encoding="utf-8"))
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.If)]:
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body.clear()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def room(name):
    """The room of a module: the package or file right below ``memalpha`` (or its ``contrib``)."""
    parts = name.split(".")
    if parts[1:2] == ["contrib"]:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else name


def graph(package):
    """For each module, the modules of the package that it imports."""
    files = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    edges: dict[str, set[str]] = {}
    for name, path in files.items():
        edges[name] = set()
        for target in imports(path):
            if target.split(".")[0] == package.name and target != f"{package.name}.__version__":
                edges[name].add(target if target in files else target.rpartition(".")[0])
    return edges


def faults(package):
    """Everything in a package that breaks a rule of this file, one line each."""
    edges = graph(package)
    found = []
    for name, targets in edges.items():
        if LEVELS.get(room(name)) is None:
            found.append(f"{name} is in no room")
            continue
        for target in sorted(targets):
            height = LEVELS.get(room(target))
            if room(target) != room(name) and (height is None or height >= LEVELS.get(room(name))):
                found.append(f"{name} imports {target}, which is not below it")
    for path in sorted(package.rglob("*.py")):
        name = module_name(path, package)
        for library in {target.split(".")[0] for target in imports(path)} & DOORS.keys():
            if name not in DOORS[library]:
                found.append(f"{name} imports {library}")
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        found.append(f"import cycle: {' -> '.join(error.args[1])}")
    return found


def test_imports_run_downwards_and_through_their_doors():
    assert faults(PACKAGE) == []


def opens_a_journal(path):
    calls = [
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    return any(ast.unparse(function) in ("Journal", "Journal.open") for function in calls)


def test_one_store_is_below_all_that_use_a_memory():
    opening = {
        module_name(path, PACKAGE) for path in PACKAGE.rglob("*.py") if opens_a_journal(path)
    }
    assert opening == {"memalpha.use.store"}


# What loaders of published sets may import of the room of data; and those that read another set's
# files, too.
SHARED = {"chunks", "rows", "source"} | {
    f"published.{name}" for name in ("labelled", "multihop", "shared", "stems", "titles")
}
OTHER_SETS = {"locomo_plus": "published.locomo", "mem_alpha": "published.memoryagentbench"}


def test_a_loader_of_a_published_set_imports_no_other_set():
    published = "memalpha.data.published."
    edges = graph(PACKAGE)
    readers = {name for name, targets in edges.items() if any(published in to for to in targets)}
    assert {name for name in readers if published not in name} == {
        "memalpha.data.leaks",  # ``as_asked``, which all loaders share
        "memalpha.data.load",
        "memalpha.contrib.importing.chats",
    }
    wrong = []
    for name in filter(lambda name: name.startswith(published), edges):
        home = name.removeprefix(published)
        allowed = SHARED | {OTHER_SETS.get(home, "")}
        for target in edges[name]:
            if room(target) == "data" and target.removeprefix("memalpha.data.") not in allowed:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


# Loaders that import more than five names of memalpha.data.source. Take out what is shortened.
WORDY = {"beam": 6, "labelled": 7, "locomo_plus": 6, "longmemeval": 6, "multihop": 7, "sgd": 6}
WORDY |= {"squad": 8}


def test_a_loader_of_a_published_set_needs_at_most_five_names_of_data_sources():
    words = {
        path.stem: sum(name.startswith("memalpha.data.source.") for name in imports(path))
        for path in PACKAGE.glob("data/published/*.py")
    }
    assert {home: count for home, count in words.items() if count > 5} == WORDY


SNIPPET = """
import sys, time
began = time.process_time()
import {module}
print(time.process_time() - began, *sorted({heavy} & sys.modules.keys()))
"""


@pytest.mark.parametrize(
    "module",
    ["memalpha", "memalpha.types, memalpha.errors, memalpha.memory.memory, memalpha.models"],
)
def test_importing_the_package_is_quick_and_brings_nothing_heavy(module):
    code = SNIPPET.format(module=module, heavy=set(HEAVY))
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert said[1:] == []
    assert float(said[0]) < 1.0


# ------------------------------------------------------------------------------------------------
# names
def defined(tree):
    """Names of functions, classes, types and constants that a module defines, each with its node,
    not those that it imports."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                if isinstance(part, ast.Name):
                    yield part.id, node


def names_of(package):
    """The names of all modules: (name, node, module)."""
    for path in sorted(package.rglob("*.py")):
        for name, node in defined(ast.parse(path.read_text(encoding="utf-8"))):
            yield name, node, module_name(path, package)


def test_no_public_name_stands_twice():
    """But the list of its sources, which each loader's module has: ``data/load.py`` asks for it."""
    homes = defaultdict(set)
    for name, _, module in names_of(PACKAGE):
        if not name.startswith("_"):
            homes[name].add(module)
    twice = {name: modules for name, modules in homes.items() if len(modules) > 1}
    loaders = twice.pop("SOURCES")
    assert twice == {} and {room(module) for module in loaders} <= {"data", "contrib.importing"}


IRREGULAR = frozenset(
    "begun bound bought broken brought built caught chosen cut done drawn driven forgotten found"
    " given gone heard held hidden kept known left lost made meant put read said seen sent set shown"
    " spoken sworn taken told understood whole worn written".split()
)
SMALL = frozenset("as at by from in of on to with".split())
NOUNS_AND_VERBS = frozenset("embed feed need seed speed".split())  # end as participles do


def is_participle(name):
    """Whether a name is a participle and says of nothing what it is: ``found``, ``_checked_by``."""
    words = [word.lower() for word in re.findall("[A-Z]?[a-z]+", name)]
    if not words or not SMALL.issuperset(words[1:]):
        return False
    first = words[0]
    return first in IRREGULAR or (first.endswith("ed") and first not in NOUNS_AND_VERBS)


def test_no_function_or_class_is_named_by_a_participle_alone():
    named = {
        f"{module}.{name}"
        for name, node, module in names_of(PACKAGE)
        if not isinstance(node, ast.Assign | ast.AnnAssign) and is_participle(name)
    }
    assert named == set()
    assert all(map(is_participle, ["found", "_checked_by", "Drawn", "held"]))
    assert not any(map(is_participle, ["found_share", "seed", "StoredItem", "reading"]))


def test_all_lists_the_public_names_and_each_is_documented():
    assert memalpha.__all__ == sorted(set(memalpha.__all__))
    assert dir(memalpha) >= memalpha.__all__
    for name in memalpha.__all__:
        assert getattr(memalpha, name).__doc__, name
    with pytest.raises(AttributeError):
        memalpha.no_such_name  # noqa: B018


def code_of(path):
    """The Python code of a page, an example or a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    if path.suffix == ".py":
        return text
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


IMPORT = re.compile(r"^\s*(?:from|import) (memalpha[\w.]*)(?: import (\([^)]*\)|.*))?", re.M)


def test_pages_examples_and_notebooks_use_public_names_alone():
    """CONTRIBUTING's recipes change the package, and name its modules, as does the example that
    opens what training does.
    """
    opened = ROOT / "examples" / "grpo_in_one_file.py"
    pages = [ROOT / "README.md", PACKAGE / "use" / "card.md.jinja", *ROOT.glob("docs/**/*.md")]
    public = {
        "memalpha": set(memalpha.__all__),
        "memalpha.cli": {"run"},
        "memalpha.clients": set(memalpha.clients.__all__),
    }
    wrong = []
    examples = [path for path in ROOT.glob("examples/*.py") if path != opened]
    for path in [*pages, *examples, *ROOT.glob("notebooks/*.ipynb")]:
        for module, names in IMPORT.findall(code_of(path)):
            imported = set(re.findall(r"\w+", names))
            if not imported <= public.get(module, set()):
                wrong.append(f"{path.name}: {module} {names}")
    assert wrong == []
