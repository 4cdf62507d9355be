"""Entry points: another package adds to this one; what is broken or stands twice ends in one error."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest

from memalpha import MemorySchema
from memalpha.contrib.importing.kinds import EXPORT_LOOKS
from memalpha.errors import InputError
from memalpha.qa import readers
from memalpha.use.store import MemoryStore

ROOT = Path(__file__).resolve().parents[1]

MODULE = """
def add_verbs(app):
    @app.command()
    def greet(name: str):
        print(f"hello {name}")
"""


ROUTES = """
from starlette.responses import PlainTextResponse

class Hello:
    options = None
    names_user = False
    max_body_bytes = 5

    @classmethod
    def build(cls, operations, callers, config, options):
        return cls()

    def owns(self, path):
        return path == "/hello"

    def add_to(self, app):
        async def hello(request):
            return PlainTextResponse(f"hello {(await request.body()).decode()}")
        app.add_route("/hello", hello, methods=["POST"])

    def respond(self, problem):
        return PlainTextResponse(f"no: {problem.what}", status_code=problem.status)
"""

SERVE = """
import sys; sys.path.append(sys.argv[1])
from starlette.testclient import TestClient
from memalpha import MemoryAgent
from memalpha.use.access import Callers, Grant, ServeConfig
from memalpha.use.server import build_app

app = build_app(
    MemoryAgent.without_model(store=":memory:"), ServeConfig(), Callers(Grant("local", "a"))
)
with TestClient(app, base_url="http://127.0.0.1") as client:
    for body in ("Ada", "everybody"):
        answer = client.post("/hello", content=body)
        print(answer.status_code, answer.text)
    print(client.get("/v1/memory").json()["total"], client.get("/v1/ping").json()["status"])
"""


def install(site, package, point, group="memalpha.verbs"):
    """Write what pip leaves behind of a package with one entry point."""
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{point}\n")


def call(site, *words):
    return subprocess.run(
        [sys.executable, "-c", "import sys; sys.path.append(sys.argv.pop(1))\n"
         "from memalpha.cli import main; main()", str(site), *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )  # fmt: skip


def test_a_package_adds_a_verb(tmp_path):
    (tmp_path / "polite.py").write_text(MODULE)
    install(tmp_path, "polite", "greet = polite:add_verbs")
    done = call(tmp_path, "greet", "Ada")
    assert (done.returncode, done.stdout) == (0, "hello Ada\n"), done.stderr
    shown = call(tmp_path, "--help").stdout
    assert "greet" in shown and "router" in shown


def test_a_package_that_cannot_be_loaded_is_named(tmp_path):
    install(tmp_path, "broken", "greet = no_such_module_here:add_verbs")
    done = call(tmp_path, "train", "--help")
    assert done.returncode == 1
    assert "'greet'" in done.stderr and "no_such_module_here" in done.stderr
    assert "Traceback" not in done.stderr


def test_one_name_of_two_packages_is_refused(tmp_path):
    for package in ("polite", "rude"):
        (tmp_path / f"{package}.py").write_text(MODULE)
        install(tmp_path, package, f"greet = {package}:add_verbs")
    done = call(tmp_path, "greet", "Ada")
    assert done.returncode == 1 and "polite:add_verbs and rude:add_verbs" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_package_adds_routes_to_the_server(tmp_path):
    (tmp_path / "polite.py").write_text(ROUTES)
    install(tmp_path, "polite", "hello = polite:Hello", "memalpha.routes")
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.splitlines() == ["200 hello Ada", "413 no: the request's body", "0 ok"], (
        done.stderr
    )


OWN_PACKAGE = ROOT / "examples" / "own_package"
SOURCES = """
from own_package import Source, read_line, CommonOptions, by_row

SQUAD = [Source("squad", "another one", by_row(read_line), CommonOptions)]
NOTHING = [read_line]
"""


def prepare(site, point):
    """Install a package with one entry point for sources, and prepare one line of ``lines``."""
    shutil.copy(OWN_PACKAGE / "own_package.py", site)
    (site / "more_sources.py").write_text(SOURCES)
    install(site, "lines", point, "memalpha.sources")
    file = site / "lines.jsonl"
    file.write_text(
        '{"text": "The cat is Biscuit.", "question": "Which cat?", "answer": "Biscuit"}'
    )
    return call(site, "prepare", "lines", "--input", str(file), "--output", str(site / "out"))


DIARY = """{"day": "2024-03-05", "wrote": "The cat is Biscuit."}
{"day": "2024-03-06", "wrote": "It rained."}
{"kind": "photo"}
"""


def import_diary(site, point, *words):
    install(site, "diaries", f"diary = {point}", "memalpha.exports")
    shutil.copy(OWN_PACKAGE / "own_package.py", site)
    (site / "diary.jsonl").write_text(DIARY)
    to = ("--store", str(site / "m.db"), "--user", "ann", "--json")
    return call(site, "import", str(site / "diary.jsonl"), *to, *words)


@pytest.mark.parametrize("words", [(), ("--kind", "diary")])
def test_the_package_of_the_examples_adds_a_kind_of_exports(tmp_path, words):
    points = tomllib.loads((OWN_PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]
    done = import_diary(tmp_path, points["memalpha.exports"]["diary"], *words)
    told = json.loads(done.stdout)
    assert (told["kind"], told["read"], told["skipped"]) == ("diary", 2, {"no day": 1}), done.stderr
    with MemoryStore(tmp_path / "m.db") as store:
        (hit, *_) = store.search("Biscuit", 1, namespace="ann")
    assert (hit.entry.content, hit.entry.timestamp) == ("User: The cat is Biscuit.", "2024-03-05")
    listed = " ".join(call(tmp_path, "import", "--help").stdout.replace("│", " ").split())
    names = [*EXPORT_LOOKS, "diary"]
    told = f"{', '.join(names)}. By default it is recognised"
    assert told.replace(" ", "") in listed.replace(" ", "")  # lines break at hyphens, too


def test_a_kind_of_exports_that_is_none_is_refused(tmp_path):
    done = import_diary(tmp_path, "math:pi")
    assert done.returncode == 1 and "memalpha.contrib.importing.exports.Kind" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_package_of_the_examples_adds_a_data_source_and_a_verb(tmp_path):
    declared = tomllib.loads((OWN_PACKAGE / "pyproject.toml").read_text())["project"]
    points = declared["entry-points"]
    assert points.keys() == {"memalpha.exports", "memalpha.sources", "memalpha.verbs"}
    install(tmp_path, "own-package", f"sections = {points['memalpha.verbs']['sections']}")
    done = prepare(tmp_path, f"lines = {points['memalpha.sources']['lines']}")
    assert done.stdout.startswith("1 instances, 1 chunks, 1 questions"), done.stderr
    names = [section.name for section in MemorySchema.load("small_core").sections]
    shown = call(tmp_path, "sections", "small_core")
    assert [line.partition(":")[0] for line in shown.stdout.splitlines()] == names, shown.stderr


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("lines = no_such_module_here:LINES", "No module named 'no_such_module_here'"),
        ("lines = more_sources:NOTHING", "'lines' gives function"),
        ("lines = more_sources:SQUAD", "gives a data source 'squad', which exists already"),
    ],
)
def test_a_data_source_that_is_none_is_named(tmp_path, point, said):
    done = prepare(tmp_path, point)
    assert done.returncode == 1 and said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_source_that_nobody_has_is_told_which_there_are(tmp_path):
    done = call(tmp_path, "prepare", "nothing", "--output", str(tmp_path / "out"))
    assert done.returncode == 1 and "'nothing'" in done.stderr and " own, " in done.stderr


GUARD = """
class Guard:
    def __init__(self, names):
        self.names = names

    def masked(self, text):
        return text.replace("42", "[number]"), text.count("42")

    def refusal(self, memory, index, chunk, operations):
        loud = any(operation.content.isupper() for operation in operations)
        return f"the guard {self.names}" if loud else ""

    def forget_texts(self):
        print("forgotten")

def nothing(names):
    return names
"""

AGENT = """
import sys
sys.path[:0] = [sys.argv[1], "."]
from tests.helpers.scripted import FACTS, ScriptedGenerator
from memalpha import InputError, MemoryAgent
from memalpha.agent.step import AgentStep
from memalpha.models.registry import make_tokenizer

step = AgentStep(FACTS, make_tokenizer(["facts"], 4096))
script = ScriptedGenerator(["+ ANN HAS A CAT", "+ Ann has a cat"])
try:
    agent = MemoryAgent(step, script, guards=sys.argv[2:])
except InputError as error:
    sys.exit(f"error: {error}")
for text in "the number is 42", "the password is hunter2!x":
    added = agent.add(text)
    print(added.removed, *(result.message for result in added.results if not result.ok))
agent.forget("1")
"""


def use(site, point, *guards):
    """Install a package with one entry point for detectors, and let a scripted agent use guards."""
    (site / "watching.py").write_text(GUARD)
    install(site, "watching", point, "memalpha.detectors")
    command = [sys.executable, "-c", AGENT, str(site), *guards]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_package_adds_a_guard_which_is_asked_beside_others(tmp_path):
    pytest.importorskip("detect_secrets", reason="needs the extra audit")
    done = use(tmp_path, "capitals = watching:Guard", "secrets", "capitals")
    assert done.stdout.splitlines() == ["1 the guard ['capitals']", "1", "forgotten"], done.stderr


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("capitals = no_such_module_here:Guard", "No module named 'no_such_module_here'"),
        ("capitals = watching:nothing", "'capitals' gives list ['capitals']"),
        (
            "letters = watching:Guard",
            "guards ['capitals'] are unknown\n  expected: some of assistant, ",
        ),
    ],
)
def test_a_guard_that_is_none_is_named(tmp_path, point, said):
    done = use(tmp_path, point, "capitals")
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


CREDIT = """
from memalpha.training.credit import StepCredit
class EvenCredit(StepCredit):
    def check(self, options, group_size):
        print("credited", group_size)
"""
TRAIN = ("train", "--use_cpu", "true", "--train_data", "no-such-data")


def test_a_package_adds_a_credit_that_is_listed_and_used(tmp_path):
    (tmp_path / "fair.py").write_text(CREDIT)
    install(tmp_path, "fair", "even = fair:EvenCredit", "memalpha.credits")
    listed = call(tmp_path, "train", "--options").stdout
    assert "One of: trajectory, step, even, evidence, memory_tokens, same_state." in listed
    assert "credited 8" in call(tmp_path, *TRAIN, "--credit", "even").stdout
    done = call(tmp_path, *TRAIN, "--credit", "odd")
    assert done.returncode == 1 and "credit is 'odd'" in done.stderr
    assert "'step', 'even', 'evidence', 'memory_tokens' or 'same_state'" in done.stderr


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("even = no_such_module_here:EvenCredit", "no_such_module_here"),
        ("even = math:pi", "names math:pi"),
        ("step = math:pi", "'step': math:pi"),
    ],
)
def test_a_credit_that_is_none_or_has_a_name_of_the_package_is_refused(tmp_path, point, said):
    install(tmp_path, "broken", point, "memalpha.credits")
    done = call(tmp_path, *TRAIN, "--credit", "even")
    assert done.returncode == 1 and said in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------
# roles, lessons, readers
ROLE = """
from memalpha.training.role import WriterRole
class CriticRole(WriterRole):
    def check(self, options, reward):
        print("a critic of", options.writer)
def demonstrate(instances, agent, teacher, end_token, seed):
    print("shown", len(list(instances)))
    raise SystemExit(7)
"""


def test_a_package_adds_a_role_and_a_lesson(tmp_path):
    (tmp_path / "critics.py").write_text(ROLE)
    install(tmp_path, "critics", "critic = critics:CriticRole", "memalpha.roles")
    install(tmp_path, "lessons", "critic = critics:demonstrate", "memalpha.demonstrations")
    assert "One of: writer, asker, critic." in call(tmp_path, "train", "--options").stdout
    assert "a critic of me" in call(tmp_path, *TRAIN, "--role", "critic", "--writer", "me").stdout
    assert "One of: policy, reader, asker, critic." in call(tmp_path, "warmup", "--options").stdout
    words = "--model nano --data toy --schema toy --codec compact --teaches critic --use_cpu true"
    size = ("--data_options", "{n: 3, split: train}", "--output_dir", str(tmp_path / "made"))
    done = call(tmp_path, "warmup", *words.split(), *size)
    assert (done.returncode, "shown 3" in done.stdout) == (7, True), done.stderr


def test_a_role_that_is_none_is_refused(tmp_path):
    install(tmp_path, "broken", "critic = math:pi", "memalpha.roles")
    done = call(tmp_path, *TRAIN, "--role", "critic")
    assert done.returncode == 1 and "memalpha.training.role.Role" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_adapter_that_searches_needs_a_reader_that_does(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "find_plugins", lambda group: {})
    with pytest.raises(InputError, match="searches 2 times, but no installed package"):
        readers.open_reader(tmp_path, 9, len, lambda _: Mock(), searches=2)


READER = """
from memalpha.qa.readers import BudgetedReader
from memalpha.types import Answer
class Counter(BudgetedReader):
    def read(self, requests):
        return [Answer(str(len(self.passages(request)))) for request in requests]
"""
READ = """
import sys; sys.path.append(sys.argv[1])
from memalpha import MemAlphaError
from memalpha.measure.options import ReaderSpec
from memalpha.qa.readers import open_reader
from memalpha.training.config import RunOptions
from memalpha.types import Question, ReadRequest

assert RunOptions(reader="counter").reader == ReaderSpec("counter").kind == "counter"
request = ReadRequest(Question("How many?"), ("ab", "cd", "ef"))
try:
    print(open_reader("counter", 5, len).read([request])[0].text)
except MemAlphaError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("point", "said"),
    [("counter = counting:Counter", "2"), ("counter = math:pi", "names math:pi")],
)
def test_a_package_adds_a_reader(tmp_path, point, said):
    (tmp_path / "counting.py").write_text(READER)
    install(tmp_path, "counting", point, "memalpha.readers")
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert said in done.stdout.splitlines()[0], done.stderr
    listed = call(tmp_path, "train", "--options").stdout
    assert "One of: recall, base, trained, endpoint, counter." in listed


# ------------------------------------------------------------------------------------------------
# metrics
GRADE = """
import sys
sys.path.append(sys.argv[1])
from memalpha.errors import InputError
from memalpha.qa.metrics import metric_names, score
from memalpha.qa.readers import wanted_answers
from memalpha.types import Answer, Question

assert "memalpha.data" not in sys.modules
for metric in sys.argv[2:]:
    try:
        question = Question("?", ("two cats", "x"), metric)
        print(score(question, Answer("cat, two")), *wanted_answers(question), sep="|")
    except InputError as error:
        print(error)
"""


def grade(site, point, *metrics):
    """Install a package with one entry point for metrics, and score an answer by some metrics in a
    process that has loaded no data source."""
    (site / "grading.py").write_text(
        "from memalpha.qa.metrics import AnswerMetric\n"
        "def letters(question, answer):\n    return len(answer.text) / 16\n"
        "LETTERS = AnswerMetric(letters, needs_all=True)"
    )
    install(site, "grading", point, "memalpha.metrics")
    command = [sys.executable, "-c", GRADE, str(site), *metrics]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_metrics_of_published_sets_and_of_a_package_are_found_where_no_loader_was_imported(
    tmp_path,
):
    scores = grade(tmp_path, "letters = grading:letters", "letters", "stemmed_f1", "parts", "f1")
    assert scores.splitlines() == [f"{score}|two cats|x" for score in (0.5, 1.0, 0.0, 0.5)]


def test_a_package_says_that_its_metric_needs_all_answers(tmp_path):
    assert grade(tmp_path, "letters = grading:LETTERS", "letters") == "0.5|two cats, x\n"


@pytest.mark.parametrize(
    ("point", "metric", "said"),
    [
        ("letters = no_such_module_here:letters", "letters", "No module named 'no_such_module_here'"),
        ("letters = grading:letters", "lettres", "absent, letters, parts, recall_at_5, stemmed_f1"),
        ("f1 = grading:letters", "lettres", "an entry point 'f1': grading:letters"),
        ("parts = grading:letters", "parts", "'parts': grading:letters and memalpha.data.published"),
    ],
)  # fmt: skip
def test_a_metric_that_is_none_or_has_a_taken_name_is_refused(tmp_path, point, metric, said):
    assert said in grade(tmp_path, point, metric)
