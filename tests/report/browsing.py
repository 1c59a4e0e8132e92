"""A real browser without a window, and what it was asked to load."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def browser_path() -> str:
    """Return where the system's Chromium is."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail(
            "these tests need Chromium: install it (Debian: apt-get install chromium), "
            "or leave them out with -m 'not browser'"
        )
    return path


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """An open page, with everything it complained about or asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, address: str) -> Page:
        """Go to an address and wait until the page is drawn."""
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.set_default_timeout(120_000)  # machines are busy
        self.page.goto(address)
        self.page.wait_for_selector("body[data-drawn]")
        return self.page


def chart(page: Page, key: str) -> dict:
    """Scroll to a chart and return what the chart library itself holds of it."""
    page.locator(f"#figure-{key} .plot").scroll_into_view_if_needed()
    page.wait_for_function("k => document.getElementById('figure-' + k).querySelector('.plot').data?.length", arg=key)
    return page.evaluate(
        """k => { const plot = document.getElementById('figure-' + k).querySelector('.plot');
                  const plain = (v) => JSON.parse(JSON.stringify(v));
                  return {data: plain(plot.data), layout: plain(plot.layout)}; }""",
        key,
    )


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
