"""What ``fedfeat list`` shows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedfeat import cli, plugins
from fedfeat.methods import PARTS

MODULE = """\
from fedfeat.methods import Method, addon


@addon("announced")
def announced(method: Method, settings: object) -> Method:
    \"\"\"Nothing.\"\"\"
    return method
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with an entry point, which nothing has loaded yet."""
    info = tmp_path / "announcing-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: announcing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedfeat.methods]\nannounced = announced_methods\n")
    (tmp_path / "announced_methods.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    plugins._entry_points.cache_clear()
    yield
    sys.modules.pop("announced_methods", None)
    plugins._packages.pop("announced_methods", None)
    PARTS.pop("announced", None)
    plugins._entry_points.cache_clear()


@pytest.mark.usefixtures("package")
def test_methods_of_installed_packages_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    cli.app(["list", "methods", "--json"], standalone_mode=False)
    names = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert {"fedcbdr", "announced"} <= names
