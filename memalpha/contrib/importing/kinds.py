"""The kinds of exports by name; ``exports.py`` recognises and reads them."""

from collections.abc import Mapping

from memalpha.plugins import plugin_names

EXPORTS_GROUP = "memalpha.exports"
EXPORT_LOOKS: Mapping[str, str] = {
    "chatgpt": "objects with 'mapping' (conversations.json)",
    "claude": "objects with 'chat_messages'",
    "claude-memories": "objects with 'conversations_memory'",
    "claude-code": "messages with 'sessionId' and 'message' (sessions, JSON Lines)",
    "deepseek": "objects with 'mapping' of 'fragments'",
    "gemini": "activities of 'Gemini Apps' (Takeout, JSON or HTML)",
    "gemini-cli": "objects with 'sessionId' and 'messages'",
    "grok": "objects with 'conversation' and 'responses'",
    "openwebui": "objects with 'chat' of 'history'",
    "librechat": "messages with 'isCreatedByUser'",
    "sharegpt": "turns with 'from' and 'value'",
    "locomo": "objects with 'session_1'",
    "langmem": "items with 'namespace', 'key' and 'value'",
    "memos": "items with 'memory' and 'metadata'",
    "mem0": "memories with 'id' and 'memory' or 'text'",
    "messages": "messages with 'role' and 'content'",
}
"""How the elements of each kind look, in the order in which they are tried."""


def kind_names() -> list[str]:
    """Return the names of all kinds: this package's, then those of entry points."""
    return plugin_names(EXPORTS_GROUP, EXPORT_LOOKS)
