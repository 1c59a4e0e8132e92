"""A maker of run folders, and one browser for all tests that need one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browsing import Visit, chromium
from fake_runs import write_run
from playwright.sync_api import Browser

MakeRun = Callable[..., Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the browser on one worker: it is started once."""
    for item in items:
        if item.get_closest_marker("browser") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return functools.partial(write_run, tmp_path / "runs")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """A wide window, with the right to read the clipboard back."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield Visit(context.new_page())
    context.close()
