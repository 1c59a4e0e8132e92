"""The table of attacks: every row names a test that is there, and nothing that must be tried is missing."""

from __future__ import annotations

import re
from pathlib import Path

from documents import ROOT

from attack_table import Row, update, written

PAGE = ROOT / "docs" / "attacks.md"
ROWS = written(PAGE.read_text())


def test_every_row_names_a_test_that_is_there() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert {row.test for row in ROWS} <= set(re.findall(r"^def (test_\w+)\(", code, re.MULTILINE))


def test_enough_was_tried() -> None:
    replies = sum(row.times for row in ROWS if row.test == "test_a_hundred_hostile_replies")
    connections = sum(row.times for row in ROWS if row.who == "stranger on the network")
    kills = sum(row.times for row in ROWS if row.who == "fault")
    assert replies >= 100
    assert connections >= 200
    assert kills >= 40


def test_every_known_attack_has_a_row() -> None:
    known = (
        "plugin of the server's choice",
        "data called public",
        "second hello",
        "same round with other weights",
        "masses (-100, -1e+30)",
        "prior_head (NaN, infinite, 1e308",
        "3e+38 added",
        "samples (2^53",
        "entry too many",
        "oversize paths, headers and bodies",
        "never finished",
        "connections at once",
        "forged log line",
        "state is gone",
        "keeps silent",
        "SuperLink's port",
        "flipped bits",
        "rollback without permission",
    )
    assert [attack for attack in known if not any(attack in row.attack for row in ROWS)] == []


def test_rows_of_other_tests_stay(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- attack-table -->\n<!-- /attack-table -->\nafter\n")
    update(page, [Row("a", "x", 1, "one", "test_a"), Row("b", "y", 1200, r"p \| q", "test_b")])
    update(page, [Row("a", "x", 2, "two", "test_a")])
    assert written(page.read_text()) == [Row("a", "x", 2, "two", "test_a"), Row("b", "y", 1200, r"p \| q", "test_b")]
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
