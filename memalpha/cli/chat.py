"""``memalpha chat``: talk to a model with a memory, see what it remembers and why it said what it said."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from memalpha.cli.console import console, quiet_libraries, with_notes
from memalpha.cli.inputs import is_operation, load_agent
from memalpha.cli.screen import printable, printable_lines, show_table
from memalpha.errors import InputError, MemAlphaError
from memalpha.memory.tools import is_text

if TYPE_CHECKING:
    from memalpha.cli.conversation import Answerer, Conversation
    from memalpha.types import Change
    from memalpha.use.agent import MemoryAgent
    from memalpha.use.records import Added

_CONTEXT = 4096  # tokens, assumed of a model that does not say, such as one behind a server
HELP = (
    "/memory           what is remembered",
    "/why              the entries that the last answer was read from",
    "/read             remember what was said and not yet read",
    "/undo [NUMBER]    take back what was remembered last, or one operation",
    "/forget ENTRY yes erase an entry for good",
    "/help             this list",
    "/quit             leave (so does the end of input)",
)


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "chat",
        help="talk to a model with this memory in the terminal",
        description="Needs: a trained agent, a store (made if it is not there). Shows: a conversation; /help lists the commands.",
        epilog="memalpha chat data/adapters/smollm2-135m-memory --store memories.db --user marta",
    )
    parser.add_argument("trained", metavar="TRAINED", help="folder or Hub name of a trained agent")
    parser.add_argument("--store", required=True, help="path of a SQLite file, or postgresql://user@host/database")
    parser.add_argument("--key-file", help="file with the key of a keyed store")
    parser.add_argument("--user", required=True, help="your name: whose memory it is, and who speaks")
    parser.add_argument("--agent", default="default", help="which agent's memory (default: %(default)s)")
    parser.add_argument("--session", default="default", help="which session's memory (default: %(default)s)")
    parser.add_argument("--model", help="base of the adapter (default: the one it names); it also answers")
    parser.add_argument("--device", default="cpu", help="where the model runs (default: %(default)s)")
    parser.add_argument("--retrieve-k", type=int, default=5, help="entries an answer is read from (default: %(default)s)")
    parser.add_argument("--read-every", type=int, default=1, help="messages that are read at a time (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="longest answer, in tokens (default: %(default)s)")
    parser.add_argument("--reader-url", help="another model answers: an OpenAI-compatible server, up to and including the version")
    parser.add_argument("--reader-model", help="that model's name there")
    parser.set_defaults(run=run, takes_more=False)


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Talk until told to stop."""
    from memalpha.cli.conversation import ChatReader, Conversation
    from memalpha.store.journal import Namespace

    quiet_libraries()
    namespace = Namespace(arguments.user, arguments.agent, arguments.session)
    if arguments.max_new_tokens < 1:
        raise InputError(f"max_new_tokens is {arguments.max_new_tokens}", expected="at least 1")
    with load_agent(arguments) as agent:
        generate, context = _answerer(agent, arguments)
        room = (context - arguments.max_new_tokens) // 4
        reader = ChatReader(generate, agent.step.encoder.count, arguments.user, min(512, room))
        talk(Conversation(agent, namespace, reader, arguments.read_every))
    return 0


def _answerer(agent: MemoryAgent, arguments: argparse.Namespace) -> tuple[Answerer, int]:
    """Return what answers, and its context in tokens: a server, the base without the adapter, or the whole trained model."""
    from memalpha.types import Sampling

    sampling = Sampling(arguments.max_new_tokens)
    if arguments.reader_url or arguments.reader_model:
        from memalpha.endpoints import ChatClient

        client = ChatClient(arguments.reader_url or "", arguments.reader_model or "")
        return lambda chats: [reply.text for reply in client.complete_many(chats, sampling)], _CONTEXT
    from memalpha.agent.step import positions_of
    from memalpha.generation.hf import frozen_base
    from memalpha.text import chat_ids
    from memalpha.types import Prompt

    generator: Any = agent.generator.generator
    model, tokenizer = generator.model, agent.step.encoder.tokenizer
    context = positions_of(model.config) or _CONTEXT
    if hasattr(model, "disable_adapter"):
        return frozen_base(model, tokenizer, arguments.max_new_tokens), context

    def answer(chats: list[list[Any]]) -> list[str]:
        prompts = [Prompt(tuple(chat), chat_ids(tokenizer, chat)) for chat in chats]
        return [done.text for done in generator.generate(prompts, sampling)]

    return answer, context


# ------------------------------------------------------------------------------------------------ the terminal
def talk(conversation: Conversation, lines: TextIO | None = None) -> None:
    """Answer line after line until /quit or the end of input; what was not read by then is read.

    A mistake or failure is one message and the conversation goes on.

    Args:
        conversation: With whom.
        lines: Where messages come from; None takes the terminal, or the pipe.
    """
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
                _message(conversation, line)
        except MemAlphaError as error:
            _say(f"error: {with_notes(error)}")
        except KeyboardInterrupt:
            _say("interrupted")
    try:
        _told(conversation.read())
    except MemAlphaError as error:
        _say(f"error: {with_notes(error)}")


def _lines(lines: TextIO | None) -> Iterator[str]:
    source = lines or sys.stdin
    if isinstance(source, io.TextIOWrapper):
        source.reconfigure(errors="surrogateescape")  # a line in another encoding is that line's mistake
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


def _message(conversation: Conversation, message: str) -> None:
    _say(conversation.answer(message).text or "(no answer)")
    _told(conversation.listen(message))


def _command(conversation: Conversation, line: str) -> None:
    name, *more = line.split()
    if name not in _COMMANDS:
        raise InputError(f"no command {name!r}", expected="one that /help lists")
    _COMMANDS[name](conversation, more)


def _memory(conversation: Conversation, more: list[str]) -> None:
    entries = conversation.agent.memory(conversation.namespace)
    show_table(
        ("entry", "section", "time", "content", "operation"),
        [(e.id, e.section, e.timestamp or "", e.content, e.updated) for e in entries],
    )


def _why(conversation: Conversation, more: list[str]) -> None:
    if conversation.last is None:
        raise InputError("nothing was answered yet", expected="a message first")
    hits = conversation.last.entries
    if not hits:
        _say("no entry was found for it")
        return
    show_table(
        ("entry", "score", "time", "content", "operation"),
        [(e.id, f"{score:.3g}", e.timestamp or "", e.content, e.updated) for e, score in hits],
    )


def _read(conversation: Conversation, more: list[str]) -> None:
    added = conversation.read()
    if added is None:
        _say("everything said is read")
    _told(added)


def _undo(conversation: Conversation, more: list[str]) -> None:
    if more and not (len(more) == 1 and is_operation(more[0])):
        raise InputError(f"/undo {' '.join(more)[:40]}", expected="/undo or /undo NUMBER, an operation as /memory shows it")
    for done in conversation.undo(int(more[0]) if more else None):
        _say(f"  not taken back: {done}" if isinstance(done, MemAlphaError) else f"  taken back: {_shown(done)}")


def _forget(conversation: Conversation, more: list[str]) -> None:
    if len(more) != 2 or more[1] != "yes":
        entry = more[0] if more else "ENTRY"
        raise InputError("forgetting cannot be undone", expected=f"/forget {entry} yes")
    receipt = conversation.forget(more[0])
    _say(f"  forgotten for good: entry {receipt.entry}, {receipt.operations} records erased")


def _help(conversation: Conversation, more: list[str]) -> None:
    for line in HELP:
        _say(line)


_COMMANDS: dict[str, Callable[[Conversation, list[str]], None]] = {
    "/memory": _memory, "/why": _why, "/read": _read, "/undo": _undo, "/forget": _forget, "/help": _help,
}  # fmt: skip


def _told(added: Added | None) -> None:
    """Say what reading did to the memory, the model's failed calls too."""
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
