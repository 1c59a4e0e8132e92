"""Launching kernels, and compiling those of a whole step side by side.

Triton compiles a kernel when it is first launched, one after another: most of that is waiting for an assembler and a
C compiler. So a step may be walked through once in which every launch is noted and none takes place; its kernels are
compiled on as many threads as there are processors while the rest of the step goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Grid = tuple[int, ...]


class _Ahead:
    """Kernels being compiled, each kind once."""

    def __init__(self, device: torch.device) -> None:
        begin = (torch.cuda.set_device, (device,)) if device.type == "cuda" else (None, ())
        self.threads = ThreadPoolExecutor(os.cpu_count(), "kernels", *begin)
        self.kinds: dict[tuple[Any, ...], Future[None]] = {}

    def note(self, kernel: Any, grid: Grid, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        kind = (id(kernel), *map(_kind, args), *sorted(options.items()))
        if kind not in self.kinds:
            self.kinds[kind] = self.threads.submit(compile_one, kernel, grid, args, options)


_ahead: _Ahead | None = None  # of all threads: autograd walks backward on one of its own


def launch(kernel: Any, grid: Grid, *args: Any, **options: Any) -> None:
    """Launch a kernel, or only have it compiled."""
    if _ahead is None:
        kernel[grid](*args, **options)
    else:
        _ahead.note(kernel, grid, args, options)


@contextmanager
def compiling_ahead(device: torch.device) -> Iterator[None]:
    """Compile what is launched inside and run none of it: results are whatever their memory holds."""
    global _ahead
    _ahead = ahead = _Ahead(device)
    try:
        with ahead.threads:
            yield
    finally:
        _ahead = None
    for compiled in ahead.kinds.values():
        compiled.result()


def compile_one(kernel: Any, grid: Grid, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Compile one kernel for arguments like these, and what launches it."""
    kernel.warmup(*args, grid=grid, **options)[grid]


def _kind(value: Any) -> Any:
    """Return what Triton compiles anew for, or something finer."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, int):
        return int, value == 1, value % 16 == 0
    return type(value)
