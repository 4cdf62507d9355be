"""The page at /: what everybody gets, and in a real browser what it shows and changes. Without a
browser these skip and say so."""

import pytest

from tests.helpers.axe import accessibility_faults
from tests.helpers.servers import client, line, running, tokens_file

# every field has a label, nothing is wider than the window, dark is dark
FITTING = """[
    [...document.querySelectorAll('input, textarea')].every((each) => each.labels.length === 1),
    document.documentElement.scrollWidth <= innerWidth,
    Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g)) < 60
]"""
IMAGE, SCRIPT = "<img src=x onerror=window.hit=1>", "</script><script>window.hit=2</script>"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tokens = tokens_file(
        tmp_path_factory.mktemp("page") / "tokens.yaml",
        line("marta"),
        line("backend", any_user=True),
    )
    with running(store=tokens.with_name("store.db"), tokens=tokens, archive=True) as server:
        yield server


@pytest.fixture
def marta(server, request):
    with client(server, "marta", **{"Memalpha-Session": request.node.name}) as http:
        http.contents = lambda: [
            entry["content"] for entry in http.get("/v1/memory").json()["entries"]
        ]
        yield http


@pytest.fixture
def page(browser, server, request):
    """The page in dark and narrow; at the end no markup came to life, no policy was broken, nobody
    else was asked."""
    wrong, page = [], browser.new_page(viewport={"width": 360, "height": 700}, color_scheme="dark")
    page.on(
        "console",
        lambda message: (
            "the server responded with a status of 40" in message.text or wrong.append(message.text)
        ),
    )
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on(
        "request",
        lambda request: (
            request.url.startswith((f"{server.url}/", "data:")) or wrong.append(request.url)
        ),
    )
    page.goto(server.url)
    page.fill("#session", request.node.name)
    yield page
    inert = page.evaluate(
        "[window.hit, document.images.length, document.scripts.length, localStorage.length]"
    )
    assert (wrong, inert, page.context.cookies()) == ([], [None, 0, 1, 0], [])
    page.close()


def enter(page, field, text):
    page.fill(field, text)
    page.keyboard.press("Enter")


def told(page, text):
    return page.locator("#said", has_text=text).inner_text()


def test_the_page_needs_no_token_and_may_load_and_call_only_its_own_server(server):
    own = ("script-src", "style-src", "connect-src")
    none = ("default-src", "base-uri", "form-action", "frame-ancestors")
    rest = {"img-src": "data:", "require-trusted-types-for": "'script'", "trusted-types": "'none'"}
    with client(server) as http:
        for path, kind in {"/": "html", "/page.css": "css", "/page.js": "javascript"}.items():
            page = http.get(path)
            assert page.headers["content-type"] == f"text/{kind}; charset=utf-8"
            assert page.headers["x-content-type-options"] == "nosniff"
            policy = dict(
                rule.split(" ", 1) for rule in page.headers["content-security-policy"].split("; ")
            )
            assert policy == dict.fromkeys(own, "'self'") | dict.fromkeys(none, "'none'") | rest
            assert http.get(path, headers={"Host": "evil.example"}).status_code == 421


def test_an_answer_shows_its_entries_and_passages_and_markup_is_text(page, marta):
    for text in (IMAGE, SCRIPT):
        marta.post("/v1/add", json={"text": text, "source": IMAGE})
    enter(page, "#token", "token-of-marta")
    page.fill("#text", "Marta: harbour.\nMarta lives in Oslo")
    page.fill("#day", "2024-03-05")
    page.click("#add button")
    assert "✓ insert 3" in told(page, "Read. Changes: 1.")
    enter(page, "#question", "Who lives in Oslo near the harbour? Or img src, script, window hit")
    page.locator("#reply h3", has_text="What was said").wait_for()
    reply = page.inner_text("#reply")
    assert "Marta lives in Oslo" in page.inner_text("#reply .text >> nth=0")
    passage = "Marta: harbour.\nMarta lives in Oslo\npassage, as it was read · said 2024-03-05"
    assert f"{passage} · written " in reply
    assert IMAGE in reply
    for shown in (page.inner_text("#memory"), page.inner_text("#history")):
        assert IMAGE in shown and SCRIPT in shown
    enter(page, "#question", "script window hit")
    page.locator("#reply .text", has_text=SCRIPT).first.wait_for()
    page.get_by_role("button", name="History: entry 3").press("Enter")
    page.locator("#history-title", has_text="History of entry 3").wait_for()
    assert page.locator("#history li").count() == 1
    assert page.evaluate(FITTING) == [True, True, True]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_breaks_no_rule_of_wcag_and_an_empty_memory_says_what_fills_it(
    page, marta, scheme
):
    page.emulate_media(color_scheme=scheme)
    assert accessibility_faults(page) == []  # it asks for a token
    enter(page, "#token", "token-of-marta")
    page.locator("#memory", has_text="Nothing is remembered yet.").wait_for()
    assert page.is_visible("#unwritten") and accessibility_faults(page) == []
    page.fill("#text", "Marta: hello.\nMarta lives in Oslo")
    page.click("#add button")
    told(page, "Read. Changes: 1.")
    enter(page, "#question", "Where does Marta live?")
    page.locator("#reply .text").first.wait_for()
    assert not page.is_visible("#unwritten") and accessibility_faults(page) == []
    page.evaluate("document.querySelector('label').replaceWith(document.getElementById('token'))")
    page.evaluate("document.getElementById('enter').hidden = false")
    assert [fault.partition(":")[0] for fault in accessibility_faults(page)] == ["label"]


def test_undo_takes_the_last_step_back_with_its_passages_and_then_the_one_before(page, marta):
    for text in ("Ivan: hello.\nIvan is a nurse", "Ivan: no.\n= 1 Ivan is a cook"):
        marta.post("/v1/add", json={"text": text})
    enter(page, "#token", "token-of-marta")
    for now, lines in (
        (["Ivan is a nurse"], ["Ivan is a nurse", "Ivan is a nurse", "Ivan: hello."]),
        ([], ["unknown"]),
    ):
        page.click("#undo")
        assert "− Ivan" in told(page, "undone. Changes: 2.") and marta.contents() == now
        reply = marta.post("/v1/ask", json={"question": "Ivan, hello, no, nurse, cook"}).json()
        assert sorted(reply["answer"].splitlines()) == lines
        page.reload()
    page.click("#undo")
    told(page, "There is no step to undo.")


def test_forget_asks_first_then_erases_and_says_what(page, marta):
    for text in ("Ivan: zebra.\nBo: Ivan lives in Lima", "Zoe keeps bees"):
        marta.post("/v1/add", json={"text": text})
    enter(page, "#token", "token-of-marta")
    answers = ["accept", "dismiss"]
    page.on("dialog", lambda dialog: getattr(dialog, answers.pop())())
    for _ in answers[:]:
        assert marta.contents() == ["Bo: Ivan lives in Lima", "Zoe keeps bees"]
        page.get_by_role("button", name="Forget: entry 1").click()
    said = told(page, "Entry 1 is forgotten. Records that lost their content: 2.")
    assert "zebra" not in said and marta.contents() == ["Zoe keeps bees"]
    assert not answers and "Lima" not in marta.get("/v1/history").text + page.inner_text("main")
    answers.append("accept")  # what has a word of it can go, too
    page.locator("#reply button").first.click()
    told(page, "is forgotten. Records that lost their content: 1.")
    assert not answers and "zebra" not in marta.get("/v1/history").text


def test_a_wrong_token_and_a_missing_user_are_told_and_leaving_drops_the_token(page):
    enter(page, "#token", "token-of-nobody")
    assert "does not know" in told(page, "token") and not page.is_visible("#open")
    enter(page, "#token", "token-of-backend")
    assert "Memalpha-User" in told(page, "no user named")
    enter(page, "#user", "zoë")
    page.click("#leave")
    page.wait_for_selector("#token")
    assert page.evaluate("sessionStorage.length") == 0 and page.inner_text("#said") == ""
