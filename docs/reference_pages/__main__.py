"""Rewrite the documents of the project in the current folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_atomically
from reference_pages.captions import FOLDER
from reference_pages.communication import communication_page, measure_all
from reference_pages.configuration import configuration_reference
from reference_pages.pages import method_pages
from reference_pages.pictures import write_pictures

DOCS = Path("docs")


def write_documents(docs: Path, *, measure: bool = False, draw: bool = False) -> None:
    """Write every document; pages of methods that are gone are removed."""
    if not docs.is_dir():
        raise FedfeatError(f"{docs}: there is no such folder here; run this in the project's root")
    write_atomically(docs / "configuration.md", configuration_reference().encode())
    pages = method_pages()
    for name, text in pages.items():
        write_atomically(docs / "methods" / name, text.encode())
    for page in (docs / "methods").glob("*.md"):
        if page.name not in pages:
            page.unlink()
    if draw:
        write_pictures(docs / FOLDER)
    if measure:
        write_atomically(docs / "communication.md", communication_page(measure_all(_say)).encode())


def _say(method: str) -> None:
    print(method, file=sys.stderr)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m reference_pages", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="also run every method and write communication.md")
    parser.add_argument("--draw", action="store_true", help="also draw the pictures of FEAT's components")
    asked = parser.parse_args()
    try:
        write_documents(DOCS, measure=asked.measure, draw=asked.draw)
    except FedfeatError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
