"""A tool of one's own, which a policy calls beside insert, update and delete; own_schema.yaml, in
this folder, names it.

In the notation ``compact`` the call is a line ``link Ann | Bob``; in ``hermes`` it is a call by
name, as of any tool.
"""

from memalpha import Memory, Operation, OperationKind


def link(memory: Memory, a: str, b: str) -> list[Operation]:
    """Note for two people that they know each other.

    Args:
        memory: a copy of it; the policy gives the other arguments
        a: the first word of one's entry
        b: the first word of the other's
    """
    return [knows(memory, a, b), knows(memory, b, a)]


def knows(memory: Memory, name: str, other: str) -> Operation:
    """Return the update of one entry; ValueError, a failed call of the policy, if there is none."""
    for entry in memory.entries("people"):
        if entry.content.split()[0] == name:
            return Operation(
                OperationKind.UPDATE, "people", f"{entry.content}, knows {other}", entry.id
            )
    raise ValueError(f"no entry begins with {name!r}")
