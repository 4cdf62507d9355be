"""What axe-core finds in a page that is open in a browser."""

from pathlib import Path

import pytest

AXE = Path(__file__).resolve().parents[2] / "build/axe/node_modules/axe-core/axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]  # WCAG 2.0 to 2.2, A and AA


def accessibility_faults(page):
    """What breaks WCAG 2 A or AA, a line each; skips where axe-core is missing."""
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: bash scripts/install.sh dev fetches it with npm")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("(rules) => axe.run({runOnly: rules})", RULES)
    assert len(found["passes"]) > 5
    return [
        f"{rule['id']}: {node['html']}" for rule in found["violations"] for node in rule["nodes"]
    ]
