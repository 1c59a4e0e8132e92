"""The contract with a pre-trained backbone: a vision transformer of four thin layers, whose adapters are trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_contract

from toy import toy_config
from vision_models import save_model


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedcbdr+feat", "analytic"])
def test_methods_keep_their_promises_on_a_transformer(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model(tmp_path / "vit")
    changes = {"model": {"name": "hf", "path": str(folder)}, "train": {"batch": 16, "lr": 0.1}}

    def adapted(method: str, **more: dict[str, object]) -> object:
        merged = {key: {**changes.get(key, {}), **more.get(key, {})} for key in {*changes, *more}}
        return toy_config(method, **merged)

    monkeypatch.setattr(test_contract, "toy_config", adapted)
    test_contract.hold(method, tmp_path)
