"""Takes docs/images/rollout.png from the report of a real run, in Chromium: ``python
scripts/screenshots.py runs/quickstart``.

It is the rollout with the most kinds of operation, then the highest reward: chosen by that rule and
not by hand.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from memalpha.measure.site import facts_of_run, write_site
from memalpha.record.folder import RunFolder

run, target = (
    RunFolder(sys.argv[1]),
    Path(__file__).resolve().parents[1] / "docs" / "images" / "rollout.png",
)
known = [fact for fact in facts_of_run(run) if fact["reward"] is not None]
best = min(
    known,
    key=lambda fact: (
        -sum(map(bool, (fact["insert"], fact["update"], fact["delete"]))),
        -fact["reward"],
        fact["page"],
    ),
)
with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
    site = write_site(run, Path(folder)).parent.as_uri()
    browser = playwright.chromium.launch(
        executable_path=shutil.which("chromium") or shutil.which("google-chrome")
    )
    page = browser.new_context(
        device_scale_factor=1.5, viewport={"width": 1280, "height": 1320}
    ).new_page()
    page.goto(f"{site}/rollouts/{best['page']}")
    picture = (
        Image.open(io.BytesIO(page.screenshot()))
        .convert("RGB")
        .quantize(256, dither=Image.Dither.NONE)
    )
    picture.save(target, optimize=True)
