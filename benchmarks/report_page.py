"""How large a report of 30 runs is, how long it takes to write, and how long a browser needs to open and draw it.

    python benchmarks/report_page.py [DIR]     DIR: a folder of runs; without it one short run is copied to 30

Opening is timed in headless Chromium from the start of navigation to the first drawn chart, and to the end of the
page's own script. The page is read from disk.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import tomli_w
from playwright.sync_api import Browser, sync_playwright

from fedfeat.config.config import load_config
from fedfeat.report import find_runs, write_report
from fedfeat.runs.experiment import start

METHODS, SEEDS, REPEATS = 10, 3, 5
NAMES = ("chromium", "chromium-browser", "google-chrome")
MEBIBYTE = 2**20


def thirty_runs(folder: Path) -> Path:
    """Train one short run on the digits and copy it under other names and seeds."""
    first = folder / "first"
    start(load_config(Path("digits"), ["method=fedcbdr+feat", "train.rounds=20", "train.local_epochs=1"]), first)
    result = json.loads((first / "result.json").read_text())
    config = load_config(first / "config.toml").to_table()
    for method in range(METHODS):
        for seed in range(SEEDS):
            copy = folder / "runs" / f"method-{method}" / f"seed{seed}"
            shutil.copytree(first, copy, ignore=shutil.ignore_patterns("checkpoint"))
            name = {"method": f"fedcbdr+feat-{method}", "seed": seed}
            (copy / "config.toml").write_text(tomli_w.dumps(config | name))
            (copy / "result.json").write_text(json.dumps(result | name))
    return folder / "runs"


def open_seconds(browser: Browser, path: Path) -> tuple[float, float]:
    """Return seconds from navigation to the end of the page's script, and to the first chart on the screen."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri(), wait_until="commit")
    page.wait_for_selector("body[data-drawn]")
    script = page.evaluate("performance.now()") / 1000
    page.locator("#figure-accuracy").scroll_into_view_if_needed()
    page.wait_for_selector("#figure-accuracy .main-svg")
    chart = page.evaluate("performance.now()") / 1000
    page.close()
    return script, chart


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else thirty_runs(Path(temporary))
        page = Path(temporary) / "report.html"
        begun = time.perf_counter()
        runs = find_runs([folder])
        write_report(runs, page)
        written = time.perf_counter() - begun
        print(f"{len(runs)} runs: {page.stat().st_size / MEBIBYTE:.1f} MiB, written in {written:.2f} s")
        executable = next(found for name in NAMES if (found := shutil.which(name)))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            times = [open_seconds(browser, page) for _ in range(REPEATS)]
            browser.close()
        script, chart = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"opened: page complete after {script:.2f} s, first chart after {chart:.2f} s (median of {REPEATS})")


if __name__ == "__main__":
    main()
