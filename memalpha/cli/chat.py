"""``memalpha chat``: talk to a model with a memory, and see what it remembers and uses."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from pydantic import PositiveInt

from memalpha.cli.console import console, quiet_libraries, with_notes
from memalpha.cli.inputs import AgentOptions, add_verb, is_operation, read_options
from memalpha.cli.screen import printable, printable_lines, show_table
from memalpha.config import Options
from memalpha.errors import InputError, MemAlphaError
from memalpha.text import is_text

if TYPE_CHECKING:
    from memalpha.cli.conversation import Answerer, Conversation
    from memalpha.endpoints import ChatClient
    from memalpha.types import Change
    from memalpha.use.agent import Added, MemoryAgent

_CONTEXT = 4096  # tokens; default for a model that does not say, e.g. behind a server
HELP = """\
/memory           what is remembered
/why              the entries that the last answer was read from
/read             remember what was said and not yet read
/undo [NUMBER]    take back what was remembered last, or one operation
/forget ENTRY yes erase an entry for good
/help             this list
/quit             leave (so does the end of input)"""


@dataclass(frozen=True, slots=True)
class ChatOptions(Options):
    """Who talks.

    Attributes:
        user: Your name: owner of the memory, and speaker.
        agent: Which agent's memory.
        session: Which session's memory.
        read_every: Messages that are read at a time.
        max_new_tokens: Longest answer, in tokens.
    """

    user: str
    agent: str = "default"
    session: str = "default"
    read_every: PositiveInt = 1
    max_new_tokens: PositiveInt = 128


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    add_verb(
        verbs,
        "chat",
        run,
        help="talk to a model with this memory in the terminal",
        description="Needs: a trained agent, a store (made if it is not there), a user. Shows: a conversation; /help lists the "
        "commands. All options: --options.",
        epilog="memalpha chat data/adapters/smollm2-135m-memory --store memories.db --user marta",
    )


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Talk until /quit or the end of input."""
    from memalpha.cli.conversation import ChatReader, Conversation
    from memalpha.store.journal import Namespace

    quiet_libraries()
    trained, options, who = read_options(arguments, rest, AgentOptions, ChatOptions)
    namespace = Namespace(who.user, who.agent, who.session)
    with options.load(trained) as agent:
        generate, context = _answerer(agent, options.reader(), who.max_new_tokens)
        room = (context - who.max_new_tokens) // 4
        reader = ChatReader(generate, agent.step.encoder.count, who.user, min(512, room))
        talk(Conversation(agent, namespace, reader, who.read_every))
    return 0


def _answerer(agent: MemoryAgent, client: ChatClient | None, max_new_tokens: int) -> tuple[Answerer, int]:
    from memalpha.types import Prompt, Sampling

    sampling = Sampling(max_new_tokens)
    if client is not None:
        return lambda chats: [reply.text for reply in client.complete_many(chats, sampling)], _CONTEXT
    from memalpha.agent.step import positions_of
    from memalpha.generation.hf import frozen_base
    from memalpha.text import chat_ids

    generator: Any = agent.generator.generator
    model, tokenizer = generator.model, agent.step.encoder.tokenizer
    context = positions_of(model.config) or _CONTEXT
    if hasattr(model, "disable_adapter"):
        return frozen_base(model, tokenizer, max_new_tokens), context

    def answer(chats: list[list[Any]]) -> list[str]:
        prompts = [Prompt(tuple(chat), chat_ids(tokenizer, chat)) for chat in chats]
        return [done.text for done in generator.generate(prompts, sampling)]

    return answer, context


def talk(conversation: Conversation, lines: TextIO | None = None) -> None:
    """Answer lines (None = the terminal or pipe) until /quit or the end of input, then read the rest; errors are printed."""
    if console.is_terminal:
        _say(f"Talking as {conversation.reader.user}. /help lists the commands, /quit leaves.")
    for line in _lines(lines):
        try:
            if not is_text(line):
                raise InputError("a line that cannot be read", expected="text in the encoding of this terminal, such as UTF-8")
            if line in ("/quit", "/exit"):
                break
            if line.startswith("/"):
                _command(conversation, line)
            else:
                _say(conversation.answer(line).text or "(no answer)")
                _show_added(conversation.listen(line))
        except MemAlphaError as error:
            _say(f"error: {with_notes(error)}")
        except KeyboardInterrupt:
            _say("interrupted")
    try:
        _show_added(conversation.read())
    except MemAlphaError as error:
        _say(f"error: {with_notes(error)}")


def _lines(lines: TextIO | None) -> Iterator[str]:
    source = lines or sys.stdin
    if isinstance(source, io.TextIOWrapper):
        source.reconfigure(errors="surrogateescape")  # a line in another encoding fails alone
    interactive = source.isatty() and console.is_terminal
    if interactive:
        import readline  # noqa: F401 - gives input() its line editing
    while True:
        try:
            line = input("> ") + "\n" if interactive else source.readline()
        except (EOFError, KeyboardInterrupt):
            return
        if not line:
            return
        if line.strip():
            yield line.strip()


def _command(conversation: Conversation, line: str) -> None:
    name, *more = line.split()
    match name:
        case "/memory":
            entries = conversation.agent.memory(conversation.namespace)
            rows = [(e.id, e.section, e.timestamp or "", e.content, e.updated) for e in entries]
            show_table(("entry", "section", "time", "content", "operation"), rows)
        case "/why":
            _why(conversation)
        case "/read":
            added = conversation.read()
            if added is None:
                _say("everything said is read")
            _show_added(added)
        case "/undo":
            if more and not (len(more) == 1 and is_operation(more[0])):
                raise InputError(f"/undo {' '.join(more)[:40]}", expected="/undo or /undo NUMBER, an operation as /memory shows it")
            for done in conversation.undo(int(more[0]) if more else None):
                _say(f"  not taken back: {done}" if isinstance(done, MemAlphaError) else f"  taken back: {_shown(done)}")
        case "/forget":
            if len(more) != 2 or more[1] != "yes":
                raise InputError("forgetting cannot be undone", expected=f"/forget {more[0] if more else 'ENTRY'} yes")
            receipt = conversation.forget(more[0])
            _say(f"  forgotten for good: entry {receipt.entry}, {receipt.operations} records erased")
        case "/help":
            _say(HELP)
        case _:
            raise InputError(f"no command {name!r}", expected="one that /help lists")


def _why(conversation: Conversation) -> None:
    if conversation.last is None:
        raise InputError("nothing was answered yet", expected="a message first")
    if not (hits := conversation.last.entries):
        _say("no entry was found for it")
        return
    rows = [(e.id, f"{score:.3g}", e.timestamp or "", e.content, e.updated) for e, score in hits]
    show_table(("entry", "score", "time", "content", "operation"), rows)


def _show_added(added: Added | None) -> None:
    if added is None:
        return
    numbers = iter(added.operations)
    for step in added.steps:
        for change in step.outcome.changes:
            _say(f"  remembered ({next(numbers)}): {_shown(change)}")
    for result in added.results:
        if not result.ok:
            _say(f"  not done: {result.message}")


def _shown(change: Change) -> str:
    before, after = change
    if after is None:
        return printable(f"- {before.id} {before.content}") if before else "nothing"
    return printable(f"{'=' if before else '+'} {after.id} {after.content}" + (f" (was: {before.content})" if before else ""))


def _say(text: str) -> None:
    console.print(printable_lines(text), markup=False)
