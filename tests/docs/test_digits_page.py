"""The tables of docs/digits.md are those that were measured."""

from __future__ import annotations

from pathlib import Path

import pytest

import digits_page as writer


def test_the_page_shows_what_was_kept() -> None:
    page = writer.PAGE.read_text()
    assert writer.rendered(page) == page, "run: python benchmarks/digits_page.py"


def test_another_figure_changes_the_page_and_nothing_around_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(
        "method,seeds,images_per_second_mean," + ",".join(writer.COLUMNS[2:]) + "\nmine,0 1,9,50,1,40,2,60,3,7,4\n"
    )
    kept = tmp_path / "kept.csv"
    writer.keep(tmp_path, kept)
    assert "images_per_second" not in kept.read_text()
    monkeypatch.setattr(writer, "KEPT", (kept, writer.KEPT[1]))
    page = writer.PAGE.read_text()
    changed = writer.rendered(page)
    assert "| `mine` | 50.0 ± 1.0 | 40.0 ± 2.0 | 60.0 ± 3.0 | 7.0 ± 4.0 |" in changed
    assert changed.count("`joint` |") == page.count("`joint` |") - 1
    assert changed.partition("How to read it")[2] == page.partition("How to read it")[2]
