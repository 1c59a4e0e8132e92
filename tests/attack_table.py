"""One table of attacks and faults with what happens, written by the tests that tried them.

``--attack-table FILE`` puts the rows of a run into the table in a Markdown file; rows of tests that did not run stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

BEGIN, END = "<!-- attack-table -->", "<!-- /attack-table -->"
HEAD = ("who", "attack or fault", "times", "what happens", "test")


class Row(NamedTuple):
    """What somebody did, how often, and what came of it."""

    who: str
    attack: str
    times: int
    outcome: str
    test: str

    def line(self) -> str:
        return f"| {self.who} | {self.attack} | {self.times:,} | {self.outcome} | `{self.test}` |"


Recorder = Callable[..., None]


def written(text: str) -> list[Row]:
    """Read the rows of a table."""
    between = text.partition(BEGIN)[2].partition(END)[0]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in between.splitlines()]
    return [
        Row(c[0], c[1], int(c[2].replace(",", "")), c[3], c[4].strip("`"))
        for c in cells
        if len(c) == len(HEAD) and c[4].startswith("`")
    ]


def update(path: Path, rows: Iterable[Row]) -> None:
    """Put rows into the table of a file, in the place of earlier rows of the same tests."""
    fresh = list(rows)
    if not fresh:
        return
    text = path.read_text()
    tried = {row.test for row in fresh}
    kept = [row for row in written(text) if row.test not in tried]
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---|---:|---|---|"]
    lines += [row.line() for row in sorted([*kept, *fresh])]
    before, _, rest = text.partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}")
