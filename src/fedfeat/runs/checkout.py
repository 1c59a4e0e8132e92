"""Which version of this project is running, as precisely as can be known."""

from __future__ import annotations

import subprocess
from pathlib import Path

UNKNOWN = "not recorded"


def checkout_commit() -> str:
    """Return the commit of the checkout this program runs from, with '+' after it where files were changed."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
