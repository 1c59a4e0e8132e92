"""Capturing work on a GPU, to be replayed without the host."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedfeat.algorithm.step import Work

WARM_UPS = 1  # runs in which libraries choose their kernels and allocate their workspaces
STEPS_TO_CAPTURE = WARM_UPS + 2  # batches that compiling and capturing a step walk over


def captured(work: Work, pool: Any, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Return what ``work`` launches as a graph; nothing of it has run then.

    ``torch.cuda.graph`` would also give all cached memory back before each capture, only to ask for it again.
    """
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with _without_gc(), torch.cuda.stream(stream):
        graph.capture_begin(pool=pool)
        try:
            work()
        finally:
            graph.capture_end()
    return graph


def warmed_up(work: Work, pool: Any, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Return the same of work that has not run on this stream yet; it runs as often as libraries need it."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            work()
    stream.synchronize()
    return captured(work, pool, stream)


@contextmanager
def put_back(touched: Sequence[Tensor]) -> Iterator[None]:
    """Undo what happens to some tensors."""
    with torch.no_grad():
        saved = [tensor.clone() for tensor in touched]
    yield
    with torch.no_grad():
        for tensor, value in zip(touched, saved, strict=True):
            tensor.copy_(value)


@contextmanager
def _without_gc() -> Iterator[None]:
    """Keep the garbage collector out: letting go of an older graph in the middle of a capture would end it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
