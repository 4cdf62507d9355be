"""The spool against a plain dict of lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.data.spool import Spool
from memalpha.errors import InputError


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "\u00e9", "\ud800", ""]), st.none() | st.integers() | st.lists(st.text("x\n\ud800")))
    )
)
def test_it_is_a_dict_of_lists_in_order(pairs):
    spool, plain = Spool(), {}
    for key, value in pairs:
        spool.add(spool.key(key), value)
        plain.setdefault(key, []).append(value)
    assert list(spool) == list(plain.items()) and len(spool) == len(plain)
    assert [spool.find(key) for key in plain] == list(range(len(plain)))
    assert spool.find("never") is None


def test_a_disk_that_fails_is_an_input_error():
    spool = Spool()
    spool._base.close()
    with pytest.raises(InputError, match="the temporary file that gathers the input cannot be written"):
        spool.key("a")
