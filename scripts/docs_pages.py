"""The pages of the site that are made: the command line and the options from the code, and those of
the project from the files at the top of the repository.

mkdocs calls ``on_files`` (mkdocs.yml, ``hooks``). The page of the Python API is written by hand,
and must name every public name.
"""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from typer.main import get_command

import memalpha
from memalpha.cli import add_plugin_verbs, app, run
from memalpha.plugins import find_plugins

os.environ["COLUMNS"] = "200"
_OPTION = re.compile(r"^  (--\w+)(?: (.*))?$")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and refuse an API page that leaves a public name out."""
    add_plugin_verbs()
    for name, content in (("command-line", command_page()), ("options", options_page())):
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"):
        text = Path(f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](../")
        files.append(File.generated(config, f"project/{name.lower()}.md", content=text))
    page = files.get_file_from_path("reference/python.md")
    if page is not None:
        check_names(page.content_string)
    return files


def check_names(text: str) -> None:
    """PluginError for a public name that the page lacks, or a name that is not public."""
    named = set(re.findall(r"^::: (memalpha\.[\w.]+)$", text, re.MULTILINE))
    clients = {name: entry.value for name, entry in find_plugins("memalpha.clients").items()}
    public = {f"memalpha.{name}" for name in set(memalpha.__all__) - {"__version__", *clients}}
    public |= {place.replace(":", ".") for place in clients.values()}
    if named != public:
        raise PluginError(f"docs/reference/python.md lacks or invents {sorted(named ^ public)}")


def verbs(command: Any, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every verb with the words that call it, in the order of ``memalpha --help``."""
    if not hasattr(command, "commands"):
        return [(words, command)]
    below = command.commands.items()
    return [verb for name, sub in below for verb in verbs(sub, (*words, name))]


def command_page() -> str:
    """The page of every verb: what it does, its arguments and its flags."""
    text = [
        "# Command line\n",
        "This page lists every verb of `memalpha`, as `memalpha VERB --help` prints it. Verbs whose"
        " table has `--options` take the options of [their own list](options.md), too.",
        "Exit codes: 0 means done, 1 an error, 2 wrong usage, and 130 that you interrupted it. Add"
        " `--debug` anywhere for a traceback.",
    ]
    for words, verb in verbs(get_command(app)):
        text.append(f"\n## memalpha {' '.join(words)}\n\n{one_line(verb.help)}\n")
        text += ["| argument or flag | meaning |", "| --- | --- |"]
        context = verb.make_context(" ".join(words), [], resilient_parsing=True)
        for parameter in verb.get_params(context):
            row = parameter.get_help_record(context)
            if row is not None and row[0] != "--help":
                text.append(f"| `{row[0]}` | {cell(row[1])} |")
    return "\n".join(text) + "\n"


def options_page() -> str:
    """The page of the options of each verb that takes them, as ``--options`` lists them."""
    text = [
        "# Options\n",
        "Each verb below takes its options as flags (`--lora_r 8`) or from a YAML file (`--config"
        " FILE`, a line each); a flag wins. Values are YAML. `memalpha VERB --options` prints the"
        " same list.",
    ]
    for words, verb in verbs(get_command(app)):
        if any("--options" in parameter.opts for parameter in verb.params):
            text.append(f"\n## memalpha {' '.join(words)}\n\n{options_table(words)}")
    return "\n".join(text) + "\n"


def options_table(words: tuple[str, ...]) -> str:
    """The groups of options of a verb, a table each."""
    required = ["--data", "x"] if words == ("scoreboard",) else []
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if run([*words, "--options", *required]):
            raise PluginError(f"memalpha {' '.join(words)} --options failed")
    lines: list[str] = []
    for line in printed.getvalue().splitlines():
        option = _OPTION.match(line)
        if option:
            lines.append(f"| `{option[1]}` | `{option[2]}` | ")
        elif line.startswith("      "):
            lines[-1] += f"{cell(line.strip())} |"
        elif line and not line.startswith("TRAINED"):
            lines.append(f"\n**{line}**\n\n| option | default | meaning |\n| --- | --- | --- |")
    return "\n".join(lines)


def one_line(text: str | None) -> str:
    """A help text as paragraphs of Markdown."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))


def cell(text: str) -> str:
    """A text in a cell of a table: no column of its own, and no HTML."""
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return re.sub(r"``(.+?)``", r"`\1`", text)
