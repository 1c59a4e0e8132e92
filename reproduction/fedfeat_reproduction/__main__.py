"""``python -m fedfeat_reproduction``: write the pages of figures from the records of this checkout."""

from __future__ import annotations

import sys
from pathlib import Path

from fedfeat_reproduction.page import missing_readings, write_page
from fedfeat_reproduction.recipe import write_recipe_tables
from fedfeat_reproduction.records import read_records

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Write ``docs/reproduction.md`` and the tables of ``docs/recipe.md``, and name what has no reading yet."""
    write_page(ROOT / "results", ROOT / "docs" / "reproduction.md")
    records = read_records(ROOT / "results")
    write_recipe_tables(records, ROOT / "docs" / "recipe.md")
    for table, cell in missing_readings(records):
        print(f"readings.toml: no reading of {cell} in {table}", file=sys.stderr)


if __name__ == "__main__":
    main()
