"""``fedfeat paper`` as a user calls it."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from fedfeat.cli import app


def paper(*arguments: str) -> Result:
    """Call the command; errors come through."""
    return CliRunner().invoke(app, ["paper", *arguments], catch_exceptions=False)
