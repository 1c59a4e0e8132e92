"""What our side of a federation says, apart from Flower's own messages."""

from __future__ import annotations

import logging
import sys
from pathlib import Path


def show_log(*, dates: bool = False, file: Path | None = None) -> None:
    """Print our log lines to the standard output, or write them to a file; of Flower's only warnings."""
    ours = logging.getLogger("fedfeat")
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stdout) if file is None else logging.FileHandler(file)
        level = "" if file is None else "%(levelname)s "
        form = f"%(asctime)s {level}%(message)s" if dates else "%(message)s"
        handler.setFormatter(logging.Formatter(form, datefmt="%Y-%m-%d %H:%M:%S"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        ours.propagate = False
    flower = logging.getLogger("flwr")
    flower.setLevel(logging.WARNING)
    flower.addFilter(_in_one_line)


def _in_one_line(record: logging.LogRecord) -> bool:
    """Cut a message of Flower's, which may fill a page, to its first words."""
    lines = [line.strip() for line in record.getMessage().splitlines() if line.strip()]
    record.msg, record.args = (lines[0] if lines else ""), None
    return bool(lines)
