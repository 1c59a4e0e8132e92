"""Capturing work on a GPU, to be replayed without the host."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def captured(work: Callable[[], None], pool: Any, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """Return what ``work`` launches as a graph; nothing of it has run then."""
    graph = torch.cuda.CUDAGraph()
    with _without_gc(), torch.cuda.graph(graph, pool=pool, stream=stream):
        work()
    return graph


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
