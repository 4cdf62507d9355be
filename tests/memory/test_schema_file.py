"""Memory schemas: the presets as published, YAML files, and every way a file can be wrong."""

import pytest

from memalpha.errors import SchemaError
from memalpha.memory.schema import MemorySchema, Section, SectionKind, presets
from memalpha.types import OperationKind

INSERT, UPDATE, DELETE, REPLACE = OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE, OperationKind.REPLACE


def test_the_preset_mem_alpha_is_core_semantic_and_episodic():
    schema = MemorySchema.load("mem_alpha")
    assert [(s.name, s.kind, s.timestamps) for s in schema.sections] == [
        ("core", SectionKind.BLOCK, False),
        ("semantic", SectionKind.LIST, False),
        ("episodic", SectionKind.LIST, True),
    ]
    assert schema["core"].max_tokens == 512
    assert schema["core"].operations == (REPLACE,)
    assert all(section.operations == (INSERT, UPDATE, DELETE) for section in schema.lists)


def test_the_preset_nine_categories_names_the_nine_and_a_core():
    schema = MemorySchema.load("nine_categories")
    assert [section.name for section in schema.blocks] == ["core"]
    assert {section.name for section in schema.lists} == {
        "sensory_lifestyle", "culture_entertainment", "cognition_work", "values", "physiology_health",
        "resource_economic", "social_interpersonal", "spatiotemporal_context", "psychological_defense",
    }  # fmt: skip


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_under_its_own_name_and_describes_its_sections(name):
    schema = MemorySchema.load(name)
    assert schema.name == name
    assert all(section.description for section in schema.sections)


def test_a_file_gives_the_sections_it_names(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nsections:\n  - {name: profile, kind: block, max_tokens: 20}\n"
        "  - {name: log, description: what happened, timestamps: true, max_entries: 3, operations: [insert, delete]}\n"
    )
    expected = MemorySchema(
        "mine",
        (
            Section("profile", SectionKind.BLOCK, max_tokens=20),
            Section("log", SectionKind.LIST, "what happened", timestamps=True, max_entries=3, operations=(INSERT, DELETE)),
        ),
    )
    schema = MemorySchema.load(path)
    assert schema == expected
    assert "log" in schema and "profile" in schema and "semantic" not in schema and 3 not in schema
    assert schema["log"] is schema.lists[0] and schema["profile"] is schema.blocks[0]
    with pytest.raises(KeyError):
        schema["semantic"]


def test_plain_strings_mean_what_the_enums_mean():
    section = Section("log", "list", operations=["insert"])
    assert section.kind is SectionKind.LIST
    assert section.operations == (INSERT,) and section.operations[0] is INSERT
    assert MemorySchema("x", (section,)).lists == (section,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no memory schema"),
        ("just text", "no memory schema"),
        ("name: x\nsections: []", "no memory schema"),
        ("name: x\nsections: {a: 1}", "no memory schema"),
        ("sections: [oops", "is not YAML"),
        ("colour: red\nsections: [{name: a}]", r"unknown keys \['colour'\]"),
        ("sections: [{name: a}]\n1: 2\nzz: 3", r"unknown keys \[1, 'zz'\]"),
        ("sections: [{name: a, 1: 2, zz: 3}]", r"section 0 has unknown keys \[1, 'zz'\]"),
        ("[" * 3000, "is not YAML"),
        ("name: 2024-13-45\nsections: [{name: a}]", "is not YAML: month must be in"),
        ("name: 0b_\nsections: [{name: a}]", "is not YAML: invalid literal for int"),
        ("sections: [a]", "section 0 is 'a'"),
        ("sections: [{kind: list}]", "section 0 is"),
        ("sections: [{name: a}, {name: b, colour: red}]", r"section 1 has unknown keys \['colour'\]"),
        ("sections: [{name: a, kind: heap}]", "'heap' is not a valid SectionKind"),
        ("sections: [{name: a, kind: [list]}]", "is not a valid SectionKind"),
        ("sections: [{name: a, operations: [write]}]", "'write' is not a valid OperationKind"),
        ("sections: [{name: a, operations: null}]", "section 'a'"),
        ("sections: [{name: a, operations: 5}]", "section 'a'"),
        ("sections: [{name: a, operations: [replace]}]", r"is a list and allows \['replace'\]"),
        ("sections: [{name: b}, {name: a, kind: block, operations: [insert]}]", r"is a block and allows \['insert'\]"),
        ("sections: [{name: Upper}]", "section name 'Upper'"),
        ("sections: [{name: 7a}]", "section name '7a'"),
        ("sections: [{name: café}]", "section name 'café'"),
        ("sections: [{name: a, max_entries: -1}]", "max_entries is -1"),
        ("sections: [{name: a, max_entry_tokens: many}]", "max_entry_tokens is 'many'"),
        ("sections: [{name: a, max_tokens: true}]", "max_tokens is True"),
        ("sections: [{name: a, timestamps: often}]", "timestamps is 'often'"),
        ("sections: [{name: a, description: 5}]", "description is 5"),
        ("sections: [{name: a}, {name: a}]", r"names sections twice: \['a'\]"),
        ("sections: [{name: a, kind: block}]", "has no list section"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(SchemaError, match=message) as caught:
        MemorySchema.load(path)
    assert "expected:" in str(caught.value)


def test_a_file_that_is_no_text_or_a_name_that_no_file_can_have(tmp_path):
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    for name in (tmp_path / "latin.yaml", "x" * 300):
        with pytest.raises(SchemaError, match=r"cannot be read: .*\n.*UTF-8"):
            MemorySchema.load(name)


def test_a_name_that_is_nothing_lists_the_presets():
    with pytest.raises(SchemaError, match=r"^no memory schema 'nowhere'") as caught:
        MemorySchema.load("nowhere")
    assert all(name in str(caught.value) for name in presets())
    assert set(presets()) >= {"mem_alpha", "nine_categories", "facts"}
