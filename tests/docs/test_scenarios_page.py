"""The tables of docs/scenarios.md are those that were measured and declared."""

from __future__ import annotations

import json

import scenarios as writer


def test_the_page_shows_what_was_kept_and_who_refuses() -> None:
    page, runs = writer.PAGE.read_text(), json.loads(writer.KEPT.read_text())
    assert writer.rendered(page, runs) == page, "run: python benchmarks/scenarios.py --kept"
    assert {stream: {len(seeds) for seeds in methods.values()} for stream, methods in runs.items()} == {
        stream: {3} for stream in writer.STREAMS
    }
    changed = {**runs, "usual": {"mine": [{**dict.fromkeys(writer.MEASURES, float(seed))} for seed in range(3)]}}
    assert "| usual | `mine` | 1.0 ± 1.0 |" in writer.rendered(page, changed)
