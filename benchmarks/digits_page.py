"""Write the tables of docs/digits.md from what was measured.

    python benchmarks/digits_page.py                             from the tables kept in results/quick
    python benchmarks/digits_page.py runs/all runs/all100        keep those of two comparisons first

A comparison is what ``fedfeat compare`` wrote; the page names the two commands. The costs of methods are those of
``benchmarks/methods.py``.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "digits.md"
KEPT = (ROOT / "results" / "quick" / "digits-14.csv", ROOT / "results" / "quick" / "digits-100.csv")
COSTS = ROOT / "benchmarks" / "results" / "methods-small-cnn-amd-epyc-2-cores.json"
MEASURES = ("final_accuracy", "final_accuracy_uncorrected", "average_incremental_accuracy", "forgetting")
COLUMNS = ("method", "seeds", *(f"{name}_{part}" for name in MEASURES for part in ("mean", "std")))
TABLE = re.compile(r"(?<=\n)(\| method \|[^\n]*\n\|-[^\n]*\n)((?:\|[^\n]*\n)*)")
EXPECTED = re.compile(r"^\| (`[^`]+`) \| ([^|]*?) \|", re.MULTILINE)


def keep(comparison: Path, path: Path) -> None:
    """Keep of a comparison what the page shows; speeds belong to the machine."""
    rows = csv.DictReader(io.StringIO((comparison / "table.csv").read_text()))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def accuracy_rows(rows: Iterable[Mapping[str, str]]) -> str:
    """Return mean and deviation of every measure, a method a row."""
    return "".join(
        f"| `{row['method']}` | "
        + " | ".join(f"{float(row[f'{m}_mean']):.1f} ± {float(row[f'{m}_std']):.1f}" for m in MEASURES)
        + " |\n"
        for row in rows
    )


def cost_rows(methods: Sequence[Mapping[str, float]], expected: Mapping[str, str]) -> str:
    """Return what a step and a task's end cost; what one would expect is written by hand, on the page itself."""
    rows = ((f"`{m['method']}`", m["ratio"], m["boundary_seconds"]) for m in methods)
    return "".join(f"| {name} | {expected.get(name, '')} | {ratio:.2f} | {end:.2f} |\n" for name, ratio, end in rows)


def rendered(page: str) -> str:
    """Return the page with its three tables as they should be."""
    few, many = (accuracy_rows(csv.DictReader(io.StringIO(path.read_text()))) for path in KEPT)
    by_hand = dict(EXPECTED.findall(TABLE.findall(page)[2][1]))
    costs = cost_rows(json.loads(COSTS.read_text())["methods"], by_hand)
    bodies = iter((few, many, costs))
    return TABLE.sub(lambda match: match[1] + next(bodies), page)


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:]]
    if len(folders) not in (0, len(KEPT)) or not all((folder / "table.csv").is_file() for folder in folders):
        sys.exit("digits_page.py: expected no folder, or two that 'fedfeat compare' wrote")
    for folder, kept in zip(folders, KEPT, strict=False):
        keep(folder, kept)
    PAGE.write_text(rendered(PAGE.read_text()))
