"""Memory schemas: the presets as published, YAML files, and the ways a file can be wrong."""

import pytest

from memalpha.errors import InputError
from memalpha.memory.schema import MemorySchema, Section, SectionKind, presets
from memalpha.types import OperationKind

INSERT, UPDATE, DELETE, REPLACE = OperationKind


def test_the_presets_are_those_published():
    schema = MemorySchema.load("mem_alpha")
    assert [section.name for section in schema.blocks] == ["core"]
    assert [(section.name, section.timestamps) for section in schema.lists] == [
        ("semantic", False),
        ("episodic", True),
    ]
    assert schema["core"].max_tokens == 512 and schema["core"].operations == (REPLACE,)
    assert all(section.operations == (INSERT, UPDATE, DELETE) for section in schema.lists)
    nine = MemorySchema.load("nine_categories")
    assert [section.name for section in nine.blocks] == ["core"] and len(nine.lists) == 9
    for name in presets():
        assert MemorySchema.load(name).name == name
        assert all(section.description for section in MemorySchema.load(name).sections)


def test_a_file_gives_the_sections_it_names(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nsections:\n  - {name: profile, kind: block, max_tokens: 20}\n"
        "  - {name: log, description: what happened, timestamps: true, max_entries: 3, operations: [insert, delete]}\n"
    )
    log = Section(
        "log",
        SectionKind.LIST,
        "what happened",
        timestamps=True,
        max_entries=3,
        operations=(INSERT, DELETE),
    )
    schema = MemorySchema.load(path)
    assert schema == MemorySchema(
        "mine", (Section("profile", SectionKind.BLOCK, max_tokens=20), log)
    )
    assert "log" in schema and "profile" in schema and "semantic" not in schema and 3 not in schema
    assert schema["log"] is schema.lists[0] and schema["profile"] is schema.blocks[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("name: x\nsections: {a: 1}", "no memory schema"),
        ("sections: [oops", "is not YAML"),
        ("colour: red\nsections: [{name: a}]", r"unknown keys \['colour'\]"),
        ("name: 2024-13-45\nsections: [{name: a}]", "is not YAML: month must be in"),
        ("sections: [a]", "section 0 is 'a'"),
        ("sections: [{kind: list}]", "section 0 has no name"),
        ("sections: [{name: a}, {name: b, colour: red}]", "section 1 has no option 'colour'"),
        ("sections: [{name: a, kind: heap}]", "kind is 'heap' .*section 0"),
        ("sections: [{name: a, operations: [write]}]", r"operations is \['write'\]"),
        ("sections: [{name: a, operations: [replace]}]", r"is a list and allows \['replace'\]"),
        (
            "sections: [{name: b}, {name: a, kind: block, operations: [insert]}]",
            r"is a block and allows \['insert'\]",
        ),
        ("sections: [{name: Upper}]", "name is 'Upper'"),
        ("sections: [{name: 7a}]", "name is '7a'"),
        ("sections: [{name: café}]", "name is 'café'"),
        ("sections: [{name: a, max_entries: -1}]", "max_entries is -1"),
        ("sections: [{name: a}, {name: a}]", r"names sections twice: \['a'\]"),
        ("sections: [{name: a, kind: block}]", "has no list section"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        MemorySchema.load(path)
    assert "expected:" in str(caught.value)


def test_a_file_that_is_no_text_and_a_name_that_is_nothing(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    for name in (tmp_path / "latin.yaml", "x" * 300):
        with pytest.raises(
            InputError, match=r"is damaged: 'utf-8' codec|cannot look for 'x*': File name too long"
        ):
            MemorySchema.load(name)
    with pytest.raises(InputError, match=r"^no memory schema 'nowhere'") as caught:
        MemorySchema.load("nowhere")
    assert all(name in str(caught.value) for name in presets())
