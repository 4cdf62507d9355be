"""Tokens: the file, the comparison, and that none reaches beyond its own."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers import line, token_of, tokens_file

from memalpha.cli import run
from memalpha.errors import InputError
from memalpha.store.journal import Namespace
from memalpha.use.callers import HEADERS, Caller, Callers, Grant, Tokens, make_token
from memalpha.use.problems import Refused

# Names that would run into each other if they were joined, cased, cut or decoded carelessly.
NAMES = ["a", "A", "a/b", "b", "a%2Fb", "ab", "ä", "a:b", "a b", "default", "a/b/c"]
PART = st.sampled_from(NAMES)
MAYBE = st.none() | PART


@given(
    grants=st.lists(st.tuples(MAYBE, MAYBE, MAYBE), min_size=1, max_size=5, unique=True),
    which=st.integers(0, 4),
    asked=st.dictionaries(st.sampled_from(["user", "agent", "session"]), PART),
    cased=st.booleans(),
)
def test_whatever_is_asked_for_a_token_stays_in_its_own_namespaces(grants, which, asked, cased):
    which %= len(grants)
    known = [(hashlib.sha256(str(i).encode()).hexdigest(), Grant(str(i), *grant)) for i, grant in enumerate(grants)]
    headers = {HEADERS[part].lower(): quote(name, safe="") for part, name in asked.items()}
    headers["authorization"] = f"{'BEARER' if cased else 'bearer'} {which}"
    fixed = dict(zip(("user", "agent", "session"), grants[which], strict=True))
    within = all(fixed[part] in (None, name) for part, name in asked.items())
    whole = {part: fixed[part] or asked.get(part) for part in fixed}
    try:
        caller = Callers(Tokens(known)).identify(headers)
    except Refused as refused:
        assert refused.problem.status == (400 if within and whole["user"] is None else 403)
        assert not within or whole["user"] is None
    else:
        assert within
        assert caller == Caller(str(which), Namespace(whole["user"], whole["agent"] or "default", whole["session"] or "default"))


@given(st.text())
def test_no_other_text_is_a_token(text):
    known = Tokens([(hashlib.sha256(b"the token").hexdigest(), Grant("a", "a"))])
    assert (known.grant(text) is not None) == (text == "the token")


def test_a_token_is_compared_with_all_of_them_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or a == b)
    known = Tokens([(hashlib.sha256(name.encode()).hexdigest(), Grant(name, name)) for name in "abc"])
    for text, name in (("a", "a"), ("c", "c"), ("none", None)):
        compared.clear()
        found = known.grant(text)
        assert (found.user if found else None) == name and len(compared) == 3


@pytest.mark.parametrize("place", [0, 8, 63])
def test_a_token_whose_hash_differs_in_one_digit_is_not_known(place):
    digest = hashlib.sha256(b"the token").hexdigest()
    other = digest[:place] + ("0" if digest[place] != "0" else "1") + digest[place + 1 :]
    assert Tokens([(digest, Grant("a", "a"))]).grant("the token") == Grant("a", "a")
    assert Tokens([(other, Grant("a", "a"))]).grant("the token") is None


def test_a_file_is_read(tmp_path):
    path = tokens_file(tmp_path / "t.yaml", line("marta"), line("backend", any_user=True, agent="chat", session="s"))
    tokens = Tokens.load(path)
    assert tokens.grant(token_of("marta")) == Grant("marta's client", "marta")
    assert tokens.grant(token_of("backend")) == Grant("backend's client", None, "chat", "s")
    assert "token-of" not in path.read_text()


GOOD = line("marta")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("tokens: []", "no token"),
        ("{}", "no list of tokens"),
        ("tokens: [", "cannot be read"),
        ("- a", "no list of tokens"),
        (f"tokens: [{GOOD}, {GOOD}]", "stands there twice"),
        (f"tokens: [{ {**GOOD, 'sha256': 'abc'} }]", "sha256 is 'abc'"),
        (f"tokens: [{GOOD}, { {**line('ivan'), 'name': GOOD['name']} }]", "the name of a token is .marta's client"),
        (f"tokens: [{ {**GOOD, 'name': 'a'} }]".replace("'a'", '"\\ud800"'), r"the name of a token is '.ud800'"),
        (f"tokens: [{ {**GOOD, 'name': ' '} }]", "the name of a token is ' '"),
        (f"tokens: [{ {**GOOD, 'user': 7} }]", "user is 7"),
        (f"tokens: [{ {**GOOD, 'user': ' a'} }]", "user of a namespace is ' a'"),
        (f"tokens: [{ {**GOOD, 'usr': 'a'} }]", "token 1 of"),
        (f"tokens: [{ {k: v for k, v in GOOD.items() if k != 'user'} }]", "does not say whose memory"),
        (f"tokens: [{ {**GOOD, 'any_user': 'yes'} }]", "does not say whose memory"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, content, says):
    path = tmp_path / "t.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=says):
        Tokens.load(path)


@pytest.mark.parametrize(
    "arguments", [["laptop", "--user", ""], ["laptop", "--user", "marta", "--agent", ""], [""], [" "], ["a\nb"]]
)
def test_an_empty_name_is_refused_and_never_means_any(arguments, capsys):
    assert run(["token", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and " is '" in shown.err


def test_a_new_token_is_known_by_its_hash_alone():
    token, digest = make_token()
    assert len(token) > 40 and token != make_token()[0] and token not in digest
    assert Tokens([(digest, Grant("a", "a"))]).grant(token) == Grant("a", "a")
