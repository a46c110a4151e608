"""The Fleet page's picture for the documentation, over a store that was simulated.

python -m bench.fleet_picture STORE, where `pointillist simulate --weeks 9 --store STORE` wrote it
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from aggregator.releases.simulated_mark import NAME
from bench.record import ROOT
from tests.browser.page_kit import opened
from tests.browser.server_kit import served, wait_until_read

PICTURE: Final = ROOT / "docs" / "images" / "fleet.png"
MOST_BYTES: Final = 200 << 10
_LAST: Final = "#trend [data-chart]"
_MARGIN: Final = 4
_COLOURS: Final = 96


def main() -> None:
    """Draw the page up to the mix over time, 1,280 px wide."""
    parser = argparse.ArgumentParser(prog="bench.fleet_picture", description=__doc__)
    parser.add_argument("store", type=Path, help="folder of simulated releases, some weeks long")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    options = parser.parse_args()
    if not (options.store / NAME).exists():
        parser.error(f"{options.store}: expected releases of a simulation, found no {NAME} there")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        # Roll-ups are kept beside a copy: the store is only read.
        store = shutil.copytree(options.store, Path(folder) / "releases")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        # By a clock of its own weeks the store is not overdue.
        with served(store, now=lambda: 0.0) as site, opened(browser, theme=options.theme) as page:
            wait_until_read(site)
            page.goto(f"{site}/fleet?span=eight_weeks")
            picture = _packed(_taken(page))
        browser.close()
    if len(picture) > MOST_BYTES:
        parser.error(f"expected a picture of at most {MOST_BYTES} bytes, got {len(picture)}")
    PICTURE.write_bytes(picture)
    print(f"wrote {PICTURE} ({len(picture) >> 10} KiB)")


def _taken(page: Page) -> bytes:
    """Take the page from its top to the end of the last drawing that is shown."""
    box = page.locator(_LAST).bounding_box()
    if box is None:
        raise SystemExit("expected a drawing of the mix over time, found none: play more weeks")
    clip: Any = {"x": 0, "y": 0, "width": 1280, "height": box["y"] + box["height"] + _MARGIN}
    return page.screenshot(full_page=True, clip=clip)


def _packed(picture: bytes) -> bytes:
    """Keep few colours: text and lines have no more."""
    found = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(_COLOURS, dither=Image.Dither.NONE).save(found, "PNG", optimize=True)
    return found.getvalue()


if __name__ == "__main__":
    main()
