from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from fedfeat import cli


def test_what_is_missing_comes_with_the_extra_that_brings_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return None if name in ("matplotlib", "open_clip") else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    cli.app(["doctor"], standalone_mode=False)
    told = capsys.readouterr().out
    assert "pip install 'fedfeat[plots]'" in told
    assert "pip install 'fedfeat[clip]'" in told
    assert "digits" in told


def test_a_data_set_that_an_absent_package_reads_is_told_as_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cifar10").mkdir()
    for split in ("train", "test"):
        (tmp_path / "cifar10" / f"{split}.parquet").touch()
    monkeypatch.setenv("FEDFEAT_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    cli.app(["doctor"], standalone_mode=False)
    assert "cifar10         found, but " in capsys.readouterr().out


def test_an_incomplete_data_set_is_named_and_the_rest_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "train-00000-of-00002.parquet").touch()
    monkeypatch.setenv("FEDFEAT_DATA", str(tmp_path))
    cli.app(["doctor"], standalone_mode=False)
    told = capsys.readouterr().out
    assert f"cifar10         damaged: {tmp_path / 'cifar10'}" in told
    assert "your own files: set data.path" in told
