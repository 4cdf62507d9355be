"""The site as people meet it: opened from disk in a real browser. Skips where no browser is
installed, and says so."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Open = Callable[..., Any]
KINDS = (
    "index.html",
    "rollouts.html",
    "rollouts/after-0000.html",
    "rollouts/after-0001.html",
    "rollouts/step-000002-rank-0-0001.html",
)


@pytest.fixture
def visit(browser: Any, browsed: Path) -> Iterator[Open]:
    """Opens a page of the site; at the end nothing must have gone wrong in any page, and nothing
    been fetched from elsewhere."""
    wrong: list[str] = []
    pages = []

    def open_page(name: str, width: int = 1280, scheme: str = "light") -> Any:
        page = browser.new_page(
            viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
        )
        pages.append(page)
        page.set_default_timeout(10_000)
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on(
            "dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        page.on("requestfailed", lambda request: wrong.append(f"failed: {request.url}"))
        page.on(
            "request",
            lambda request: (
                request.url.startswith((browsed.as_uri(), "data:")) or wrong.append(request.url)
            ),
        )
        page.goto(f"{browsed.as_uri()}/{name}")
        return page

    open_page.wrong = wrong  # type: ignore[attr-defined]
    yield open_page
    for page in pages:
        page.close()
    assert wrong == []


def test_a_chunk_that_holds_a_script_is_inert_and_no_script_runs_but_the_sites_own(
    visit: Open,
) -> None:
    page = visit("rollouts/after-0000.html")
    assert "<script>alert(1)</script>" in page.inner_text("#step-1 .chunk")
    assert page.evaluate("document.scripts.length") == 1
    page.evaluate("""() => {
        const script = document.createElement("script"); script.textContent = "window.hit = 1"; document.body.append(script);
        document.getElementById("step-1").insertAdjacentHTML("beforeend", "<img src='data:,' onerror='window.hit = 2'>");
    }""")
    page.wait_for_timeout(50)
    assert page.evaluate("window.hit === undefined")
    said = [text for text in visit.wrong if "Content Security Policy" in text]  # type: ignore[attr-defined]
    assert len(said) == 2
    visit.wrong.clear()  # type: ignore[attr-defined]


def test_the_list_filters_sorts_and_links(visit: Open) -> None:
    page = visit("rollouts.html")

    def chosen(flag: str, where: str = "") -> list[str]:
        page.select_option("[name=where]", where)
        page.check(f"[name={flag}]")
        names = page.locator("#rollouts tbody th").all_inner_texts()
        page.uncheck(f"[name={flag}]")
        return names

    assert chosen("failed") == ["ann", "ann", "train-3-0"] and chosen("masked") == ["bob"]
    assert chosen("wrong", "step 2") == ["ann"]
    page.select_option("[name=where]", "")
    page.click("th >> text=reward")
    rewards = page.locator("#rollouts tbody tr td:nth-child(3)").all_inner_texts()
    assert rewards == [*sorted(rewards[:-1], reverse=True), "–"]  # what is not known comes last
    page.fill("[name=text]", "BOB")
    page.reload()
    assert page.inner_text("#count") == "2 of 10 rollouts"  # the choice stands in the address
    page.click("#rollouts tbody a >> nth=0")
    page.wait_for_url("**/rollouts/*.html")
    page.click("text=all of this instance >> nth=0")
    page.wait_for_url("**/rollouts.html#text=bob")


def test_the_keyboard_suffices(visit: Open) -> None:
    page = visit("rollouts/after-0000.html")
    found = []
    for key in "jjjjk":
        page.keyboard.press(key)
        found.append(page.evaluate("document.activeElement.id"))
    assert found == ["step-1", "step-2", "question-1", "entries", "question-1"]
    page.click("#question-1 .retrieved a >> text=chunk 2")
    assert page.evaluate("document.activeElement.id") == "step-2"
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**/after-0001.html")
    page.keyboard.press("u")
    page.wait_for_url("**/rollouts.html")
    page.keyboard.press("/")
    page.keyboard.type("ujk")
    assert page.url.endswith("#text=ujk")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_loads_in_light_and_dark_and_fits_a_narrow_window(
    visit: Open, scheme: str
) -> None:
    page = visit("index.html", width=360 if scheme == "light" else 1280, scheme=scheme)
    colours = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert (max(colours) < 60) is (scheme == "dark")
    for name in KINDS:
        page.goto(page.url.rsplit("/report/")[0] + f"/report/{name}")
        assert page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
        assert (
            page.evaluate("getComputedStyle(document.querySelector('.top')).display") == "flex"
        )  # the stylesheet is there
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
