"""The piecewise JSON reader against the standard library's, at block sizes that cut everywhere."""

import io
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.data.json_reader import JsonReader
from memalpha.errors import SchemaError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def reader(text, block=1 << 20):
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return JsonReader(io.BytesIO(raw), "x.json", block)


@given(st.lists(JSON, max_size=6), st.integers(1, 40), st.booleans(), st.booleans())
def test_items_are_those_of_the_standard_library(data, block, ascii_only, pretty):
    text = json.dumps(data, ensure_ascii=ascii_only, indent=2 if pretty else None)
    made = reader(text.encode("utf-8", "surrogatepass") if ascii_only else text.encode("utf-8", "replace"), block)
    wanted = json.loads(text.encode("utf-8", "replace" if not ascii_only else "surrogatepass"))
    assert list(made.items()) == wanted
    made.end()


@given(st.dictionaries(st.text(), st.lists(JSON, max_size=3), max_size=4), st.integers(1, 40))
def test_members_and_their_items(data, block):
    made = reader(json.dumps(data), block)
    assert {key: list(made.items()) for key in made.members()} == data
    made.end()


@given(st.lists(JSON, min_size=1, max_size=4), st.data(), st.integers(1, 40))
def test_a_cut_text_gives_whole_items_and_then_a_located_error(data, draws, block):
    text = json.dumps(data, indent=1)
    cut = text[: draws.draw(st.integers(0, len(text) - 1))]
    made, got = reader(cut, block), []
    with pytest.raises(SchemaError) as caught:
        got.extend(made.items())
        made.end()
    assert got == data[: len(got)]
    assert "x.json is not JSON: " in str(caught.value) and ": line " in str(caught.value)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "text", ['[1, {"a": tru}]', '[1,\n\n  {"a" 2}]', '[\n"a\nb"]', "[1, 2", '["a\\q"]', "[1,]", "", '[\n1,\n"abc', "[1] 2"]
)
def test_a_fault_is_where_the_standard_library_finds_it(text, block):
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
    made = reader(text, block)
    with pytest.raises(SchemaError, match="is not JSON") as caught:
        list(made.items())
        made.end()
    # "[1,]" is named at the comma or at the bracket after it, by the version of the standard library.
    assert place in str(caught.value) or text == "[1,]"


def test_a_number_at_the_end_of_a_block_is_read_whole():
    assert list(reader("[123456789, 1.25e10, -7]", block=1).items()) == [123456789, 1.25e10, -7]


def test_a_byte_order_mark_and_a_lone_surrogate():
    assert list(reader(b'\xef\xbb\xbf["a"]', block=1).items()) == ["a"]
    assert list(reader('["\\ud800"]').items()) == ["\ud800"]
    for block in (1, 3, 1 << 20):
        with pytest.raises(SchemaError, match=r"x\.json is not UTF-8 text: line 3: "):
            list(reader(b'[\n"a",\n"\xff"]', block).items())


def test_nesting_without_end_is_an_error():
    for text in ("[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000):
        with pytest.raises(SchemaError, match=r"nested too deeply|Expecting"):
            reader(text).value()


def test_several_values_one_after_another():
    made, got = reader('{"a": 1}\n{"a": 2}\n\n', block=3), []
    while made.peek():
        got.append(made.value())
    assert got == [{"a": 1}, {"a": 2}]


class Endless(io.RawIOBase):
    """A list of small items, 40 MB long, made as it is read."""

    def __init__(self):
        self.left, self.first = 40, True

    def read(self, size=-1):
        if not self.left:
            return b""
        self.left -= 1
        row = json.dumps({"text": "w" * 990}).encode() + b","
        block = row * 1000 if self.left else row * 999 + row[:-1] + b"]"
        block, self.first = (b"[" + block if self.first else block), False
        return block


def test_memory_is_that_of_a_block():
    tracemalloc.start()
    try:
        count = sum(1 for _ in JsonReader(Endless(), "x.json").items())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 40_000
    assert peak < 12_000_000
