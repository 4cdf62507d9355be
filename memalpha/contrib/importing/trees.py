"""Which messages of a conversation the user sees last: one rule for all programs.

Most programs keep a conversation as a tree, in which an edited message or a second answer begins
another branch. Some name the last message of the branch that is shown; of the others, the branch
with the newest end is read.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memalpha.contrib.importing.items import time_in
from memalpha.text.times import moment

_ALWAYS = datetime.min.replace(tzinfo=UTC)
_IDS = ("id", "uuid", "messageId", "message_id", "_id", "messageID", "msg_id")
_PARENTS = (
    "parent",
    "parentId",
    "parent_id",
    "parentMessageId",
    "parent_message_id",
    "parent_message_uuid",
    "parentUuid",
    "parent_uuid",
    "logicalParentUuid",
    "parent_response_id",
    "parentID",
)


class Node(NamedTuple):
    """A place in a tree; ``message`` is empty where it holds none.

    ``parent`` is empty for a root, and None where the file does not say what a message follows.
    """

    id: str
    parent: str | None
    message: dict[str, Any]
    children: tuple[str, ...] = ()


def id_of(message: dict[str, Any]) -> str:
    """Return the id of a message, by any of the names that programs give it; empty if it has
    none.
    """
    return next((str(message[key]) for key in _IDS if message.get(key) not in (None, "")), "")


def parent_of(message: dict[str, Any]) -> str | None:
    """Return the id of the message that a message follows; empty for a first one, None if it is
    unknown.
    """
    named = [message[key] for key in _PARENTS if key in message]
    if not named:
        return None
    return next((str(each) for each in named if each not in (None, "")), "")


def is_tree(nodes: Sequence[Node]) -> bool:
    """Whether any node names what it follows, or what follows it."""
    return any(node.parent or node.children for node in nodes)


def live_branch(nodes: Sequence[Node], current: str = "") -> list[int]:
    """Return the places of the nodes of the branch that was last seen, in its order.

    It ends in the node ``current`` if there is one of that id, else in the newest leaf.
    """
    places: dict[str, int] = {}
    for place, node in enumerate(nodes):
        places.setdefault(node.id, place)
    last = places.get(current) if current else None
    if last is None and _are_turns(nodes, places):
        nodes = [node if node.parent else node._replace(parent=None) for node in nodes]
    parents = _parents(nodes, places)
    branch: dict[int, None] = {}
    place = _newest_leaf(nodes, parents) if last is None else last
    while place >= 0 and place not in branch:
        branch[place] = None
        place = parents[place]
    return list(reversed(branch))


def _are_turns(nodes: Sequence[Node], places: dict[str, int]) -> bool:
    """Whether nodes say only which question an answer is to: there are more than two roots, and no
    question follows an answer. Fewer are a first message and its edited form.
    """
    answers = {node.id for node in nodes if node.parent in places}
    roots = sum(node.parent == "" for node in nodes)
    return roots > 2 and not any(node.parent in answers or node.children for node in nodes)


def _parents(nodes: Sequence[Node], places: dict[str, int]) -> list[int]:
    """Return the place of what each node follows; -1 for a root.

    Nodes that name the same missing parent as the first root are roots, too: the first message was
    edited. One that names another, or none, follows the node before it.
    """
    named: dict[str, str] = {}
    if any(node.parent is None for node in nodes):
        named = {child: node.id for node in nodes for child in node.children}
    parents: list[int] = []
    root: str | None = None
    for place, node in enumerate(nodes):
        parent = named.get(node.id) if node.parent is None else node.parent
        if parent in places:
            parents.append(places[parent])
        elif parent is None or (parent and root is not None and parent != root):
            parents.append(place - 1)
        else:
            parents.append(-1)
        if root is None:
            root = parent or ""
    return parents


def _newest_leaf(nodes: Sequence[Node], parents: Sequence[int]) -> int:
    """Return the place of the newest node that nothing follows, of several the last; -1 without
    nodes.
    """
    inner = set(parents)
    leaves = [place for place in range(len(nodes)) if place not in inner] or range(len(nodes))
    if len(leaves) < 2:
        return max(leaves, default=-1)
    return max(leaves, key=lambda place: (_last_time(nodes, parents, place), place))


def _last_time(nodes: Sequence[Node], parents: Sequence[int], place: int) -> datetime:
    """Return the time of a node, or else of the nearest one before it that has any."""
    seen: set[int] = set()
    while place >= 0 and place not in seen:
        seen.add(place)
        known = moment(time_in(nodes[place].message) or "")
        if known is not None:
            return known
        place = parents[place]
    return _ALWAYS
