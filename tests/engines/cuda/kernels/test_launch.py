"""Kernels of a step are compiled side by side before any of them runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from fedfeat.engines.cuda.kernels.launch import compiling_ahead, launch

CPU = torch.device("cpu")


class Kernel:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.compiled: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **options: self.launched.append((grid, args, options))

    def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> Any:
        self.compiled.append((grid, args, options))
        return self

    def only_compiled(self) -> bool:
        return bool(self.compiled) and not self.launched


def test_outside_a_kernel_is_launched() -> None:
    kernel = Kernel()
    launch(kernel, (2, 3), 1.0, WIDTH=4)
    assert kernel.launched == [((2, 3), (1.0,), {"WIDTH": 4})]
    assert not kernel.compiled


def test_inside_each_kind_is_compiled_once_and_nothing_runs() -> None:
    kernel, other = Kernel(), Kernel()
    x = torch.zeros(64)
    with compiling_ahead(CPU):
        for arguments, width in (
            ((x, 32), 4), ((x, 64), 4),  # both multiples of 16: one kind
            ((x, 33), 4), ((x, 1), 4), ((x.double(), 32), 4), ((x[1:], 32), 4), ((None, 32), 4), ((x, 32), 8),
        ):  # fmt: skip
            launch(kernel, (1,), *arguments, WIDTH=width)
        launch(other, (1,), x, 32, WIDTH=4)
    assert len(kernel.compiled) == 7
    assert len(other.compiled) == 1
    assert kernel.only_compiled()
    assert other.only_compiled()
    launch(kernel, (1,), x)
    assert len(kernel.launched) == 1


def test_backward_counts_too() -> None:
    """Autograd may walk backward on a thread of its own, where launches are only noted as well."""
    kernel = Kernel()
    with compiling_ahead(CPU):
        thread = threading.Thread(target=launch, args=(kernel, (1,), 1.0))
        thread.start()
        thread.join()
    assert kernel.only_compiled()


def test_a_kernel_that_does_not_compile_is_told_of_and_the_next_ones_run() -> None:
    class Broken(Kernel):
        def warmup(self, *args: Any, grid: tuple[int, ...], **options: Any) -> Any:
            raise ValueError("no such instruction")

    with pytest.raises(ValueError, match="no such instruction"), compiling_ahead(CPU):
        launch(Broken(), (1,), 1.0)
    kernel = Kernel()
    launch(kernel, (1,))
    assert kernel.launched
