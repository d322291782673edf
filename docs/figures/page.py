"""Take the picture of README: the first screen of the demo's page, which `make demo` writes.

python docs/figures/page.py: needs Chromium. Where the demo's verdict is another one, so is the picture.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
SIZE = {"width": 1280, "height": 900}


def main() -> None:
    """Open the page in Chromium and save what is seen without scrolling as docs/page.png."""
    with sync_playwright() as drivers:
        browser = drivers.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = browser.new_page(viewport=SIZE)
        tab.goto((ROOT / "reports" / "demo.html").as_uri())
        tab.screenshot(path=ROOT / "docs" / "page.png")
        browser.close()


if __name__ == "__main__":
    main()
