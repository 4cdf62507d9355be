"""The language of options, of the command line and of public names, as far as a machine sees it:
whole sentences that begin with a capital letter and end with a full stop, none too long, no word of
history, no decimal without a noun; and every parameter and field of a public name is described.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from check_docs import sentence_problems
from typer.main import get_command

import memalpha
import memalpha.clients
from memalpha.cli import add_plugin_verbs, app
from memalpha.cli.options import AgentOptions, WhoseOptions
from memalpha.cli.serve import ServeOptions
from memalpha.config import ATTRIBUTE, Options, descriptions, names
from memalpha.contrib.benchmarks.scoreboard import BoardOptions
from memalpha.contrib.router.run import ROUTER_GROUPS
from memalpha.contrib.router.tasks import EnvironmentOptions, LogOptions, SyntheticOptions
from memalpha.data.load import all_sources
from memalpha.measure.options import EVALUATE_GROUPS, ReaderSpec, SetSpec, SystemSpec
from memalpha.measure.systems import system_kinds
from memalpha.plugins import find_plugins
from memalpha.training.config import TRAIN_GROUPS
from memalpha.training.warm_start import WARMUP_GROUPS
from memalpha.use.access import ServeConfig
from memalpha.use.routes import route_options

CODE = re.compile(r"``[^`]*``|\{[^{}]*\}|\d{4}-\d\d-\d\dT\S*\d|--[\w-]+")
GROUPS = list(
    dict.fromkeys(
        [
            *(*TRAIN_GROUPS, *WARMUP_GROUPS, *EVALUATE_GROUPS, *ROUTER_GROUPS),
            *(AgentOptions, WhoseOptions, ServeOptions, ServeConfig, *route_options()),
            *(BoardOptions, SetSpec, SystemSpec, ReaderSpec, *system_kinds().values()),
            *(EnvironmentOptions, LogOptions, SyntheticOptions),
            *(source.options for source in all_sources().values()),
        ]
    )
)
PUBLIC = re.findall(r"as (\w+)$", Path(memalpha.__file__ + "i").read_text(), re.MULTILINE)


def faults_of(text: str) -> Iterator[str]:
    """The faults of a description: one or more whole sentences."""
    plain = " ".join(CODE.sub("CODE", text).split())
    if not re.match(r"[A-Z'\"]", plain):
        yield f"does not begin with a capital letter: {text[:40]!r}"
    if not re.search(r"[.?!][)\"']?$", plain):
        yield f"does not end with a full stop: {text[-40:]!r}"
    yield from sentence_problems(plain)


def faults_of_group(group: type) -> Iterator[str]:
    """The faults of the descriptions of a group's options."""
    meanings = descriptions(group)
    for name in names(group):
        for fault in faults_of(meanings.get(name, "")):
            yield f"{group.__name__}.{name}: {fault}"


def faults_of_command(command: Any, path: str) -> Iterator[str]:
    """The faults of the help of a command, of its parameters, and of the commands below it."""
    for text in re.split(r"\n\s*\n", command.help or ""):
        for fault in faults_of(text):
            yield f"{path}: {fault}"
    for each in command.params:
        if each.name != "help":
            for fault in faults_of(each.help or ""):
                yield f"{path} {each.name}: {fault}"
    for name, below in getattr(command, "commands", {}).items():
        yield from faults_of_command(below, f"{path} {name}")


def faults_of_docstring(name: str, thing: Any, doc: str) -> Iterator[str]:
    """The faults of a docstring: its first paragraph is a sentence, and its sections have the
    parameters of ``thing``, or the fields of a dataclass.
    """
    first, *_ = doc.split("\n\n")
    for fault in faults_of(first):
        yield f"{name}: {fault}"
    described = {word for kind in _documented(thing, doc) for word, _ in ATTRIBUTE.findall(kind)}
    if is_dataclass(thing):
        wanted = [each.name for each in fields(thing) if not each.name.startswith("_")]
    elif inspect.isclass(thing) and issubclass(thing, BaseException | str):
        wanted = []
    else:
        parameters = inspect.signature(thing).parameters
        wanted = [each for each in parameters if each not in ("self", "cls")]
    for each in wanted:
        if each not in described:
            yield f"{name}: {each} is not described"


def _documented(thing: Any, doc: str) -> list[str]:
    kinds = thing.__mro__ if inspect.isclass(thing) else ()
    return [doc, *(inspect.cleandoc(kind.__doc__ or "") for kind in kinds)]


def faults_of_public(name: str, thing: Any) -> Iterator[str]:
    """The faults of a public name and of its public methods and properties, those of its bases in
    this package among them.
    """
    yield from faults_of_docstring(name, thing, inspect.cleandoc(thing.__doc__ or ""))
    if not inspect.isclass(thing) or issubclass(thing, BaseException):
        return
    own = [kind for kind in thing.__mro__ if kind.__module__.startswith((__name__, "memalpha."))]
    members = {key: value for kind in reversed(own) for key, value in vars(kind).items()}
    for key, value in members.items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not key.startswith("_") and inspect.isfunction(function):
            doc = inspect.cleandoc(function.__doc__ or "")
            yield from faults_of_docstring(f"{name}.{key}", function, doc)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_every_option_is_explained_in_whole_sentences(group):
    assert list(faults_of_group(group)) == []


def test_every_verb_and_flag_is_explained_in_whole_sentences():
    add_plugin_verbs()
    assert list(faults_of_command(get_command(app), "memalpha")) == []


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_explained_with_its_parameters(name):
    assert list(faults_of_public(name, getattr(memalpha, name))) == []


@pytest.mark.parametrize("name", sorted(find_plugins("memalpha.clients")))
def test_a_client_is_explained_with_its_parameters(name):
    assert list(faults_of_public(name, getattr(memalpha.clients, name))) == []


# ------------------------------------------------------------------------------------------------
# planted faults
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "capital letter"),
        ("the rank of an adapter.", "capital letter"),
        ("A new adapter has this rank", "full stop"),
        ("The " + "very " * 35 + "long rank.", "a sentence of 38 words"),
        ("The adapter now has this rank.", "history"),
        ("The answers that are right are 0.9 here.", "decimal"),
    ],
)
def test_a_fault_of_a_text_is_seen(text, said):
    assert any(said in fault for fault in faults_of(text))


@dataclass(frozen=True)
class Bare(Options):
    """Options of a test.

    Attributes:
        rank: rank of the adapter
    """

    rank: int = 1
    alpha: int = 2

    def scale(self, by: int) -> int:
        """Return the scale."""
        return self.alpha * by


def test_a_fault_of_a_group_is_seen():
    said = " ".join(faults_of_group(Bare))
    assert "Bare.rank: does not begin" in said and "Bare.rank: does not end" in said
    assert "Bare.alpha: does not begin" in said


def test_a_fault_of_a_public_name_is_seen():
    said = list(faults_of_public("Bare", Bare))
    assert said == ["Bare: alpha is not described", "Bare.scale: by is not described"]


def test_a_fault_of_a_verb_is_seen():
    command = get_command(app)
    verb = command.commands["report"]
    kept = verb.help, verb.params[0].help
    verb.help, verb.params[0].help = "make a site", ""
    said = " ".join(faults_of_command(command, "memalpha"))
    verb.help, verb.params[0].help = kept
    assert "memalpha report: does not begin" in said and "memalpha report run: does not" in said
