#!/usr/bin/env python3
"""Takes the pictures of docs/images from the report of a real run, in Chromium.

    python scripts/screenshots.py runs/quickstart

    rollout.png   the rollout with the most kinds of operation, then the highest reward: its first steps
    curves.png    the head of the overview and its first curves

Chosen by that rule and not by hand. Pictures are stored with 256 colours, which keeps them small.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from memalpha.report.catalogue import Facts, catalogue_of
from memalpha.report.site import write_site
from memalpha.runs import RunFolder

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, SCALE = 1280, 1.5


def best(facts: tuple[Facts, ...]) -> Facts:
    """The rollout with the most kinds of operation, then the highest reward, then the first name."""
    known = [fact for fact in facts if fact.reward is not None]
    if not known:
        raise SystemExit("the run has no rollout with a known reward")
    return min(
        known, key=lambda fact: (-sum(map(bool, (fact.inserts, fact.updates, fact.deletes))), -(fact.reward or 0.0), fact.page)
    )


def shoot(page: Any, address: str, height: int, target: Path) -> None:
    page.set_viewport_size({"width": WIDTH, "height": height})
    page.goto(address)
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target}  {target.stat().st_size / 1024:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a finished run folder")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images", help="where to (default: docs/images)")
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    arguments = parser.parse_args()
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if program is None:
        raise SystemExit("no Chromium found; to fix: apt-get install chromium")
    arguments.output.mkdir(parents=True, exist_ok=True)
    run = RunFolder(arguments.run)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        site = write_site([run], Path(folder)).parent.as_uri()
        browser = playwright.chromium.launch(executable_path=program)
        page = browser.new_context(device_scale_factor=SCALE, color_scheme=arguments.scheme).new_page()
        shoot(page, f"{site}/rollouts/{best(catalogue_of([run]).facts).page}", 1320, arguments.output / "rollout.png")
        shoot(page, f"{site}/index.html", 1045, arguments.output / "curves.png")
        browser.close()


if __name__ == "__main__":
    main()
