"""A real browser for the tests of pages: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Where the tests leave pictures of what they saw."""


def missing() -> str:
    """Why there is no browser; empty if there is one."""
    if find_spec("playwright") is None:
        return "needs the package `playwright`"
    return "" if CHROMIUM.exists() else f"needs Chromium at {CHROMIUM} (apt install chromium)"


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser; skips the test where there is none."""
    if missing():
        pytest.skip(missing())
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=str(CHROMIUM), args=options)
        try:
            yield opened
        finally:
            opened.close()


def screenshot(page: object, name: str) -> None:
    """Save what a page shows."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)  # type: ignore[attr-defined]
