from __future__ import annotations

import importlib.util
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
