"""Tools of one's own: a typed function says in built-in operations what a call of the policy does
(``examples/own_tool.py``).

It reads a copy of the memory and has no other effect. So the one applier carries out what it
returns, all or nothing; the journal holds ordinary operations; replay does not call it, and undo
needs no inverse, as it would for effects of any kind.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import ConfigDict, ValidationError, validate_call

from memalpha.config import ATTRIBUTE
from memalpha.errors import InputError
from memalpha.types import Operation

if TYPE_CHECKING:
    from memalpha.memory.memory import Memory

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_JSON: dict[Any, Any] = {hint: {"type": name} for hint, name in _NAMES.items()}
_JSON[list[str]] = {"type": "array", "items": _JSON[str]}
_FORM = "NAME(memory: Memory, a: str | int | float | bool | list[str], ...) -> list[Operation], all in Args of its docstring"


@dataclass(frozen=True)
class Tool:
    """A function as a tool of its name; InputError if its signature or docstring does not say
    enough.

    ``schema``: its JSON function schema, without the memory, from hints and docstring as TRL makes
        those of its tools.
    """

    function: Callable[..., list[Operation]]
    schema: dict[str, Any] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        try:
            hints, doc = get_type_hints(self.function), inspect.getdoc(self.function) or ""
            memory, *arguments = inspect.signature(self.function).parameters.values()
            if hints["return"] != list[Operation] or hints[memory.name].__name__ != "Memory":
                raise TypeError(f"its signature is {inspect.signature(self.function)}")
            said = {name: " ".join(text.split()) for name, text in ATTRIBUTE.findall(doc)}
            properties = {
                each.name: {**_JSON[hints[each.name]], "description": said[each.name]}
                for each in arguments
            }
        except Exception as error:
            raise InputError(
                f"{self.function!r} is no tool: {type(error).__name__}: {error}", expected=_FORM
            ) from error
        required = [each.name for each in arguments if each.default is each.empty]
        parameters = {"type": "object", "properties": properties, "required": required}
        description = " ".join(
            re.split(r"^(?:Args|Returns|Raises):$", doc, flags=re.MULTILINE)[0].split()
        )
        function = {"name": self.name, "description": description, "parameters": parameters}
        object.__setattr__(self, "schema", {"type": "function", "function": function})

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def arguments(self) -> dict[str, Any]:
        """JSON schema of each argument, in order."""
        return dict(self.schema["function"]["parameters"]["properties"])

    def operations(self, memory: Memory, arguments: Mapping[str, Any]) -> list[Operation] | str:
        """Return the operations of a call, or what is wrong with it: unfit arguments, or a
        ValueError of the function.

        InputError if the function fails otherwise or returns anything else.
        """
        try:
            found = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(self.function)(
                memory.copy(), **arguments
            )
        except ValidationError as error:
            return "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
            )
        except ValueError as error:
            return " ".join(str(error).split()) or "refused"
        except Exception as error:
            said = (
                f"the tool {self.name} failed on {dict(arguments)}: {type(error).__name__}: {error}"
            )
            raise InputError(
                said, fix="correct the function; ValueError says that the call is wrong"
            ) from error
        if not isinstance(found, list) or not all(isinstance(each, Operation) for each in found):
            raise InputError(
                f"the tool {self.name} returned {found!r} for {dict(arguments)}",
                expected="a list of Operation",
            )
        return found or "it asks for no change"
