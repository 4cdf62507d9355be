"""Entry points: another package adds a verb, a credit, a role or a lesson; one that is broken or stands twice ends in
one error."""

import subprocess
import sys
from pathlib import Path

import pytest

from memalpha.errors import InputError
from memalpha.qa import readers

ROOT = Path(__file__).resolve().parents[1]

MODULE = """
def add_verbs(app):
    @app.command()
    def greet(name: str):
        print(f"hello {name}")
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
    with pytest.raises(InputError, match="searches 2 times, and no installed package"):
        readers.reader_with(tmp_path, list, 9, len, searches=2)
