"""A simulated GPU for one test, with Triton's kernels where Triton is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedfeat.algorithm.step import Work
from fedfeat.engines.cuda.capture import put_back, warmed_up
from fedfeat.engines.cuda.simulated import Recorder, stand_ins


def repeat(work: Work, touched: Sequence[Tensor]) -> Work:
    """Return work as a replay of what it did once, as the engine for GPUs gives it to the server."""
    with put_back(touched):
        return warmed_up(work, None, torch.cuda.Stream()).replay  # type: ignore[no-untyped-call]


def simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU pass for a GPU, for one test."""
    for name, stand_in in stand_ins().items():
        monkeypatch.setattr(name, stand_in)
    if importlib.util.find_spec("triton"):
        simulate_kernels(monkeypatch)


def simulate_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's kernels run in its interpreter, and be recorded like every other operation."""
    from triton.runtime.interpreter import GridExecutor

    import fedfeat.engines.cuda.kernels.descend
    import fedfeat.engines.cuda.kernels.launch

    launch = GridExecutor.__call__

    def recorded(executor: Any, *args: Any, **kwargs: Any) -> None:
        if (recorder := Recorder.active) is not None:
            recorder.launched(launch, executor, args, kwargs)  # as on a GPU, it runs when it is replayed
        else:
            launch(executor, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", recorded)
    monkeypatch.setattr(fedfeat.engines.cuda.kernels.descend, "capturing", lambda: Recorder.active is not None)
    monkeypatch.setattr(fedfeat.engines.cuda.kernels.launch, "compile_one", lambda *_: None)  # nothing is compiled here
