"""The site as people meet it: opened from disk in a real browser. Skips where no browser is installed, and says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]

KINDS = (
    "index.html", "rollouts.html", "groups.html", "pairs.html", "rollouts/after-0000.html", "rollouts/after-0001.html",
    "rollouts/step-000030-0-0001.html", "groups/step-000001-0-group-0.html", "pairs/pair-0000.html",
)  # fmt: skip

CONTRAST = """() => {
  const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                         return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return { rgb: n.slice(0, 3), alpha: n[3] ?? 1 }; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
                                                           if (c.alpha === 1) return c.rgb; } };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !element.offsetParent || element.disabled || element.matches(".skip, .hidden")) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color).rgb), light(behind(element))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), element.outerHTML.slice(0, 90)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
}"""


@pytest.fixture
def visit(browser: Any, browsed: Path) -> Iterator[Open]:
    """Opens a page of the site; at the end nothing must have gone wrong in any page, and nothing been fetched from elsewhere."""
    wrong: list[str] = []
    contexts = []

    def open_page(name: str, width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce")
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url}"))
        page.on("request", lambda request: request.url.startswith((browsed.as_uri(), "data:")) or wrong.append(request.url))
        page.goto(f"{browsed.as_uri()}/{name}")
        return page

    open_page.wrong = wrong  # type: ignore[attr-defined]
    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def count(page: Any) -> str:
    return page.inner_text("#count")


def test_every_kind_of_page_loads_without_an_error(visit: Open) -> None:
    page = visit(KINDS[0])
    for name in KINDS:
        page.goto(page.url.rsplit("/report/")[0] + f"/report/{name}")
        assert page.inner_text("h1")
        assert page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
        assert page.evaluate("getComputedStyle(document.querySelector('.top')).display") == "flex"  # the stylesheet is there


def test_a_chunk_that_holds_a_script_is_inert(visit: Open) -> None:
    page = visit("rollouts/after-0000.html")
    assert "<script>alert(1)</script>" in page.inner_text("#step-1 .chunk")
    assert page.evaluate("document.scripts.length") == 1


def test_no_script_runs_but_the_sites_own(visit: Open) -> None:
    page = visit("rollouts/after-0000.html")
    page.evaluate("""() => {
        const script = document.createElement("script"); script.textContent = "window.hit = 1"; document.body.append(script);
        document.getElementById("step-1").insertAdjacentHTML("beforeend", "<img src='data:,' onerror='window.hit = 2'>");
    }""")
    page.wait_for_timeout(50)
    assert page.evaluate("window.hit === undefined")
    said = [text for text in visit.wrong if "Content Security Policy" in text]  # type: ignore[attr-defined]
    assert len(said) == 2
    visit.wrong.clear()  # type: ignore[attr-defined]


def test_filters_leave_what_they_say(visit: Open) -> None:
    page = visit("rollouts.html")
    assert count(page) == "66 of 66 rollouts"
    assert page.locator("#rollouts tbody tr").count() == 50
    page.check("[name=failed]")
    assert count(page) == "3 of 66 rollouts"
    assert page.locator("#rollouts tbody th").all_inner_texts() == ["ann", "ann", "train-3-0"]
    page.check("[name=updates]")
    assert count(page) == "1 of 66 rollouts"
    assert page.get_attribute("#rollouts tbody a", "href") == "rollouts/after-0000.html"
    page.reload()
    assert count(page) == "1 of 66 rollouts"  # the choice stands in the address
    page.click("text=Clear")
    page.wait_for_function("document.getElementById('count').textContent.startsWith('66')")
    assert page.url.endswith("rollouts.html")
    page.check("[name=masked]")
    assert page.locator("#rollouts tbody th").all_inner_texts() == ["bob"]
    page.uncheck("[name=masked]")
    page.check("[name=deletes]")
    assert count(page) == "0 of 66 rollouts"
    page.uncheck("[name=deletes]")
    page.select_option("[name=where]", "step 7")
    assert count(page) == "2 of 66 rollouts"
    page.check("[name=wrong]")
    assert count(page) == "1 of 66 rollouts"
    page.uncheck("[name=wrong]")
    page.select_option("[name=where]", "")
    page.fill("[name=text]", "BOB")
    assert count(page) == "2 of 66 rollouts"


def test_the_list_sorts_and_turns_pages(visit: Open) -> None:
    page = visit("rollouts.html")
    page.click("#on")
    assert page.inner_text("#page") == "page 2 of 2"
    assert page.locator("#rollouts tbody tr").count() == 16
    page.click("th >> text=reward")
    assert page.get_attribute("th[aria-sort=descending]", "data-index") == "3"
    rewards = [float(text) for text in page.locator("#rollouts tbody tr td:nth-child(3)").all_inner_texts()]
    assert rewards == sorted(rewards, reverse=True)
    assert rewards[0] == 1.5
    page.click("th >> text=reward")
    assert page.locator("#rollouts tbody tr td:nth-child(3)").first.inner_text() == "0.000"
    page.click("#on")
    assert page.locator("#rollouts tbody tr td:nth-child(3)").last.inner_text() == "–"  # what is not known comes last


def test_links_lead_where_they_say(visit: Open) -> None:
    page = visit("index.html")
    page.click("text=with wrong answers")
    page.wait_for_url("**/rollouts.html#*")  # and for the page's script: a click returns as soon as the address has changed
    assert page.is_checked("[name=wrong]")
    page.uncheck("[name=wrong]")
    page.select_option("[name=where]", "after")
    page.click("#rollouts tbody a >> text=ann")
    page.wait_for_url("**/after-*.html")
    assert page.inner_text("h1") == "ann after"
    page.click("#question-1 .retrieved a >> text=chunk 2")
    assert page.evaluate("document.activeElement.id") == "step-2"
    page.click("#step-2 .memory a")
    assert page.evaluate("document.activeElement.id") == "entry-1"
    page.click("#entry-1 a >> text=insert at chunk 1")
    assert page.evaluate("document.activeElement.id") == "step-1"
    before_and_after = page.get_attribute("text=Before against after training", "href")
    page.click("text=Before against after training")
    page.wait_for_url(f"**/{before_and_after.rsplit('/')[-1]}*")
    assert page.inner_text("h1") == "ann before against after training"
    page.click("tbody a >> text=before")
    page.wait_for_url("**/before-*.html*")
    assert page.inner_text("h1") == "ann before"
    page.go_back()
    page.go_back()
    assert page.inner_text("h1") == "ann after"


def test_the_keyboard_suffices(visit: Open) -> None:
    page = visit("rollouts/after-0000.html")
    focused = "document.activeElement.id"
    page.keyboard.press("Tab")
    assert page.inner_text(":focus") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    page.keyboard.press("Enter")
    found = []
    for key in "jjjjk":
        page.keyboard.press(key)
        found.append(page.evaluate(focused))
    assert found == ["step-1", "step-2", "question-1", "entries", "question-1"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("?")
    assert page.is_visible("#keys")
    page.keyboard.press("Escape")
    assert not page.is_visible("#keys")
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**/after-0001.html")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**/after-0000.html")
    page.keyboard.press("u")
    page.wait_for_url("**/rollouts.html")
    page.keyboard.press("/")
    page.keyboard.type("ujk")
    assert page.input_value("[name=text]") == "ujk"
    assert page.url.endswith("#text=ujk")
    page.fill("[name=text]", "")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/before-0001.html")


def test_a_narrow_window_stacks_the_columns_and_never_scrolls_sideways(visit: Open) -> None:
    page = visit("rollouts/after-0000.html", width=360)
    tops = page.evaluate("[...document.querySelectorAll('#step-1 .column')].map((c) => c.getBoundingClientRect().top)")
    assert tops[0] < tops[1] < tops[2]
    for name in KINDS:
        page.goto(page.url.rsplit("/report/")[0] + f"/report/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
    wide = visit("rollouts/after-0000.html")
    assert (
        len(set(wide.evaluate("[...document.querySelectorAll('#step-1 .column')].map((c) => c.getBoundingClientRect().top)"))) == 1
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_light_and_in_dark(visit: Open, scheme: str) -> None:
    page = visit("index.html", scheme=scheme)
    red, green, blue = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(red, green, blue) < 60) is (scheme == "dark")
    assert scheme in page.evaluate("document.images[0].currentSrc")
    for name in KINDS:
        page.goto(page.url.rsplit("/report/")[0] + f"/report/{name}")
        ratio, element = page.evaluate(CONTRAST)[0]
        assert ratio >= 4.5, (name, ratio, element)
