"""The help of the verbs for an agent in use says what each needs and what comes of it, whatever the width of the terminal."""

import pytest

from memalpha.cli import run


@pytest.mark.parametrize("verb", ["chat", "export", "journal", "poison"])
@pytest.mark.parametrize("width", ["40", "200"])
def test_help_says_what_a_verb_needs_and_gives(verb, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    with pytest.raises(SystemExit) as stopped:
        run([verb, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert stopped.value.code == 0
    assert "Needs: " in said and ("Makes: " in said or "Shows: " in said)


def test_help_of_every_journal_action(capsys):
    for action in ("namespaces", "history", "as-of", "diff", "undo", "verify", "export", "import", "compact", "forget"):
        with pytest.raises(SystemExit) as stopped:
            run(["journal", action, "--help"])
        assert stopped.value.code == 0
        assert ("--namespace" in capsys.readouterr().out) == (action not in ("namespaces", "verify", "import"))
