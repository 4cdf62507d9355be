"""Tokens: the file, the comparison, and that none reaches beyond its own."""

import hashlib
import hmac
from urllib.parse import quote

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from memalpha.cli import run
from memalpha.errors import InputError
from memalpha.store.journal import Namespace
from memalpha.use.access import HEADERS, Caller, Callers, Grant, Problem
from tests.helpers.servers import line

# Names that would run into each other if they were joined, cased, cut or decoded carelessly.
PART = st.sampled_from(["a", "A", "a/b", "b", "a%2Fb", "ab", "ä", "a:b", "a b", "default", "a/b/c"])
MAYBE = st.none() | PART


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


GRANTS = st.lists(st.tuples(MAYBE, MAYBE, MAYBE), min_size=1, max_size=5, unique=True)
ASKED = st.dictionaries(st.sampled_from(["user", "agent", "session"]), PART)


@given(GRANTS, st.integers(0, 4), ASKED, st.booleans())
def test_whatever_is_asked_for_a_token_stays_in_its_own_namespaces(grants, which, asked, cased):
    which %= len(grants)
    known = [
        Grant(str(i), *grant, any_user=grant[0] is None, sha256=sha256(str(i)))
        for i, grant in enumerate(grants)
    ]
    headers = {HEADERS[part].lower(): quote(name, safe="") for part, name in asked.items()}
    headers["authorization"] = f"{'BEARER' if cased else 'bearer'} {which}"
    fixed = dict(zip(("user", "agent", "session"), grants[which], strict=True))
    within = all(fixed[part] in (None, name) for part, name in asked.items())
    whole = {part: fixed[part] or asked.get(part) for part in fixed}
    try:
        caller = Callers(known).identify(headers)
    except Problem as problem:
        assert problem.status == (400 if within and whole["user"] is None else 403)
        assert not within or whole["user"] is None
    else:
        assert within
        assert caller == Caller(
            str(which),
            Namespace(whole["user"], whole["agent"] or "default", whole["session"] or "default"),
        )


def test_a_token_is_compared_with_all_of_them_in_constant_time(monkeypatch):
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or a == b)
    known = Callers([Grant(name, name, sha256=sha256(name)) for name in "abc"])
    for text, name in (("a", "a"), ("c", "c"), ("none", None)):
        compared.clear()
        found = known.grant(text)
        assert (found.user if found else None) == name and len(compared) == 3


GOOD = line("marta")


BAD = [
    ("tokens: []", "no token"),
    (f"tokens: [{GOOD}, { {**GOOD, 'name': 'other'} }]", "twice"),
    (f"tokens: [{GOOD}, { {**line('ivan'), 'name': GOOD['name']} }]", "twice"),
    (f"tokens: [{ {**GOOD, 'sha256': 'abc'} }]", "the sha256 of token 1"),
    (f"tokens: [{ {**GOOD, 'usr': 'a'} }]", "token 1 of"),
    (f"tokens: [{ {**GOOD, 'agent': None} }]".replace("None", "null"), "blank"),
    (f"tokens: [{ {k: v for k, v in GOOD.items() if k != 'user'} }]", "whose memory"),
    (f"tokens: [{ {**GOOD, 'any_user': True} }]", "whose memory"),
]


@pytest.mark.parametrize(
    "row", [{**GOOD, "sha256": "SECRET"}, {"name": "a", "user": "b", "token": "SECRET"}, "SECRET"]
)
def test_a_token_that_stands_in_the_file_is_not_shown(tmp_path, row):
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump({"tokens": [GOOD, row]}))
    with pytest.raises(InputError, match="token 2 of") as refused:
        Callers.load(path)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(("content", "says"), BAD)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, content, says):
    path = tmp_path / "t.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=says):
        Callers.load(path)


def test_a_made_token_opens_the_namespace_it_was_made_for(tmp_path, capsys):
    assert run(["token", "laptop", "--user", "marta", "--session", "s"]) == 0
    told, _, entry = capsys.readouterr().out.splitlines()
    (tmp_path / "tokens.yaml").write_text(f"tokens:\n{entry}\n")
    callers = Callers.load(tmp_path / "tokens.yaml")
    token = told.split()[-1]
    key = {"authorization": f"Bearer {token}"}
    assert token not in entry and len(token) > 40
    for form in (key, {"authorization": f"Token {token}"}, {"x-api-key": token}):
        assert callers.identify(form) == Caller("laptop", Namespace("marta", "default", "s"))
    for form in ({"authorization": f"Basic {token}"}, {"x-api-key": ""}, {"x-api-key": "x"}):
        with pytest.raises(Problem, match="no token"):
            callers.identify(form)
    with pytest.raises(Problem) as problem:
        callers.identify({**key, "memalpha-session": "t"})
    assert "may not reach the session 't'" in problem.value.what
