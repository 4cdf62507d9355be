"""Memory schemas: named sections, their kind (block: one text; list: entries), limits and allowed operations.

Presets: ``mem_alpha``: a core block (512 tokens), semantic and episodic lists (arXiv 2509.25911, section 3.2); ``nine_categories``:
nine topical lists and a core text (the second public system named Mem-alpha); ``facts``: one list of dated facts, for small
policies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from memalpha.errors import SchemaError
from memalpha.types import OperationKind


class SectionKind(StrEnum):
    """Shape of a section."""

    BLOCK = "block"
    LIST = "list"


_ALLOWED_BY_KIND = {
    SectionKind.BLOCK: (OperationKind.REPLACE,),
    SectionKind.LIST: (OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE),
}


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a memory.

    Attributes:
        name: Unique; lower-case letters a-z, digits and ``_``, not starting with a digit (so it is never an entry's id).
        kind: A block or a list.
        description: What belongs in it; shown to the policy and used by layer 1 of the retriever.
        max_tokens: Limit of a block's text, in tokens (0 = none).
        max_entry_tokens: Limit of one list entry, in tokens (0 = none).
        max_entries: Limit on the number of list entries (0 = none).
        timestamps: Whether entries have a time; default: the chunk's.
        operations: Allowed operations; empty means all of its kind.
    """

    name: str
    kind: SectionKind
    description: str = ""
    max_tokens: int = 0
    max_entry_tokens: int = 0
    max_entries: int = 0
    timestamps: bool = False
    operations: tuple[OperationKind, ...] = ()

    def __post_init__(self) -> None:
        """Check the section; set the default operations of its kind."""
        if not isinstance(self.name, str) or not re.fullmatch(r"[a-z_][a-z0-9_]*", self.name):
            raise SchemaError(f"section name {self.name!r}", expected="a lower-case identifier such as 'semantic'")
        try:
            object.__setattr__(self, "kind", SectionKind(self.kind))
            object.__setattr__(self, "operations", tuple(OperationKind(op) for op in self.operations))
        except (TypeError, ValueError) as error:
            expected = "kind: block or list; operations: some of insert, update, delete, replace"
            raise SchemaError(f"section {self.name!r}: {error}", expected=expected) from error
        if not isinstance(self.description, str) or not isinstance(self.timestamps, bool):
            raise SchemaError(
                f"section {self.name!r}: description is {self.description!r}, timestamps is {self.timestamps!r}",
                expected="a text and true or false",
            )
        for limit in ("max_tokens", "max_entry_tokens", "max_entries"):
            value = getattr(self, limit)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise SchemaError(f"section {self.name!r}: {limit} is {value!r}", expected="an integer, 0 for no limit")
        of_kind = _ALLOWED_BY_KIND[self.kind]
        if not self.operations:
            object.__setattr__(self, "operations", of_kind)
        elif wrong := [op.value for op in self.operations if op not in of_kind]:
            raise SchemaError(
                f"section {self.name!r} is a {self.kind} and allows {wrong}", expected=f"some of {[op.value for op in of_kind]}"
            )


@dataclass(frozen=True, slots=True)
class MemorySchema:
    """The sections of a memory, in the order shown: unique names, at least one list section."""

    name: str
    sections: tuple[Section, ...]

    def __post_init__(self) -> None:
        """Check that names are unique and that there is a list section."""
        names = [section.name for section in self.sections]
        if doubled := {name for name in names if names.count(name) > 1}:
            raise SchemaError(f"schema {self.name!r} names sections twice: {sorted(doubled)}", expected="unique section names")
        if not self.lists:
            raise SchemaError(f"schema {self.name!r} has no list section", expected="at least one section of kind 'list'")

    def __contains__(self, name: object) -> bool:
        """Whether a section of that name exists."""
        return any(section.name == name for section in self.sections)

    def __getitem__(self, name: str) -> Section:
        """Return the section of that name; KeyError if there is none."""
        for section in self.sections:
            if section.name == name:
                return section
        raise KeyError(name)

    @property
    def lists(self) -> tuple[Section, ...]:
        """The list sections, in order."""
        return tuple(section for section in self.sections if section.kind is SectionKind.LIST)

    @property
    def blocks(self) -> tuple[Section, ...]:
        """The block sections, in order."""
        return tuple(section for section in self.sections if section.kind is SectionKind.BLOCK)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], where: str = "schema") -> MemorySchema:
        """Build a schema from ``{name, sections: [{name, kind, ...}]}``; SchemaError, naming ``where``, if it is not valid."""
        if not isinstance(data, Mapping) or not isinstance(data.get("sections"), list) or not data["sections"]:
            raise SchemaError(f"{where} is no memory schema", expected="a mapping with 'name' and a list 'sections'")
        if unknown := sorted(set(data) - {"name", "sections"}, key=str):
            raise SchemaError(f"{where} has unknown keys {unknown}", expected="'name' and 'sections'")
        return cls(
            str(data.get("name", "custom")), tuple(_section(row, f"{where}: section {i}") for i, row in enumerate(data["sections"]))
        )

    @classmethod
    def load(cls, name_or_path: str | Path) -> MemorySchema:
        """Load a preset by name or a YAML file by path; SchemaError if neither exists or the file is no schema."""
        try:
            if str(name_or_path) in presets():
                text = (resources.files("memalpha.memory") / "presets" / f"{name_or_path}.yaml").read_text(encoding="utf-8")
            elif Path(name_or_path).is_file():
                text = Path(name_or_path).read_text(encoding="utf-8")
            else:
                raise SchemaError(
                    f"no memory schema {str(name_or_path)!r}",
                    expected=f"a preset ({', '.join(presets())}) or the path of a YAML file",
                )
        except (OSError, UnicodeError) as error:
            raise SchemaError(f"{name_or_path} cannot be read: {error}", expected="a memory schema in YAML, as UTF-8") from error
        try:
            data = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date or number
            raise SchemaError(f"{name_or_path} is not YAML: {error}", expected="a memory schema in YAML") from error
        return cls.from_mapping(data, where=str(name_or_path))


def presets() -> tuple[str, ...]:
    """Names of the schemas that ship with the package."""
    folder = resources.files("memalpha.memory") / "presets"
    return tuple(sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml")))


def _section(row: Any, where: str) -> Section:
    known = {f.name for f in fields(Section)}
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
        raise SchemaError(f"{where} is {row!r}", expected="a mapping with 'name' and 'kind'")
    if unknown := sorted(set(row) - known, key=str):
        raise SchemaError(f"{where} has unknown keys {unknown}", expected=f"some of {sorted(known)}")
    return Section(**{"kind": SectionKind.LIST, **row})
