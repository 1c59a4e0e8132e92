"""The contract with a pre-trained backbone: a vision transformer of four thin layers, whose adapters are trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedfeat.runs.contract.hold import PROMISES, keep
from fedfeat.runs.contract.promise import NotApplicable
from fedfeat.runs.contract.trial import Trial
from toy import SMALL
from vision_models import save_model

ABOUT_ENGINES = ("vectorised", "captured")  # a transformer trains in process alone


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedcbdr+feat", "analytic"])
def test_methods_keep_their_promises_on_a_transformer(method: str, tmp_path: Path) -> None:
    model = {"name": "hf", "path": str(save_model(tmp_path / "vit"))}
    trial = Trial(method, tmp_path, tables={**SMALL, "model": model, "train": {"batch": 16, "lr": 0.1}})
    for name, promise in PROMISES.items():
        try:
            if name not in ABOUT_ENGINES:
                keep(promise, trial)
        except NotApplicable:
            continue
