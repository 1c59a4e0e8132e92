"""A GPU that is not there: what the engine for GPUs asks of ``torch.cuda``, on the CPU.

A captured step is recorded operation by operation and replayed on the same memory, as a graph is. So it holds what a
capture holds: values of the host are frozen, tensors keep their places, recording itself changes nothing. What it
cannot show is the order of streams: everything here happens at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

EMPTY = {getattr(torch.ops.aten, n) for n in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
FREE_BYTES = 10_000_000_000


def stand_ins() -> dict[str, Any]:
    """Return what takes the place of what, by its dotted name."""
    used = iter(range(1, 1_000_000))
    return {
        "torch.cuda.Stream": Stream,
        "torch.cuda.CUDAGraph": Graph,
        "torch.cuda.stream": nullcontext,
        "torch.cuda.current_stream": Stream,
        "torch.cuda.graph_pool_handle": object,
        "torch.cuda.synchronize": lambda *_: None,
        "torch.cuda.empty_cache": lambda: None,
        "torch.cuda.mem_get_info": lambda *_: (FREE_BYTES - 1_000_000 * next(used), FREE_BYTES),
        "torch.cuda.memory_reserved": lambda *_: 0,
        "torch.cuda.memory_allocated": lambda *_: 0,
        "fedfeat.engines.base.choose_device": lambda name: torch.device("cpu"),
        "fedfeat.engines.cuda.engine.need_gpu": lambda device: None,
        "fedfeat.engines.cuda.engine.matrix_peak": lambda device, precision: 1e15,
    }


@contextmanager
def simulated_gpu() -> Iterator[None]:
    """Let the CPU pass for a GPU."""
    with ExitStack() as patched:
        for name, stand_in in stand_ins().items():
            patched.enter_context(patch(name, stand_in))
        yield


class Stream:
    """A queue of work that is always done."""

    def __init__(self, device: object = None, *, priority: int = 0) -> None:
        self.priority = priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority."""
        return 0, -5

    def wait_stream(self, other: Stream) -> None:
        """There is nothing to wait for."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class Graph:
    """Recorded operations."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.memory: list[Tensor] = []  # taken and not filled: the graph's own, as long as it lives
        self.left: list[torch.UntypedStorage] = []  # what was in it when the graph was done

    def capture_begin(self, *, pool: object) -> None:
        """Record what happens from here on."""
        self._pool = pool
        self.recorder = Recorder.active = Recorder(self)
        self.recorder.__enter__()

    def capture_end(self) -> None:
        """Stop recording, and undo what was done to memory from outside."""
        self.recorder.__exit__(None, None, None)
        Recorder.active = None
        for storage, before in self.recorder.touched.values():
            storage.copy_(before)
        self.leave()

    def pool(self) -> object:
        """Return what it was told to take memory from."""
        return self._pool

    def leave(self) -> None:
        """Look at the graph's own memory once more."""
        self.left = [t.untyped_storage().clone() for t in self.memory]

    @torch.no_grad()
    def replay(self) -> None:
        """Run every operation again, on the memory it was recorded with."""
        for tensor, before in zip(self.memory, self.left, strict=True):
            now, then = (torch.tensor([], dtype=torch.uint8).set_(s) for s in (tensor.untyped_storage(), before))
            if not torch.equal(now, then):  # on a GPU, another tensor of this graph had it a moment before
                raise RuntimeError("a graph's own memory was written from outside, where nothing keeps it")
        for function, args, kwargs, results in self.operations:
            again = [t for t in tree_leaves(function(*args, **kwargs)) if isinstance(t, Tensor)]
            for ours, new in zip(results, again, strict=True):
                if ours.data_ptr() != new.data_ptr():
                    ours.copy_(new)
        self.leave()


class Recorder(TorchDispatchMode):
    """Writes operations down as they are carried out."""

    active: Recorder | None = None

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self.touched: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a captured step was read by the host")
        written = self._written(func, args, kwargs)
        for tensor in written:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.made and storage.data_ptr() not in self.touched:
                self.touched[storage.data_ptr()] = (storage, storage.clone())
        result = func(*args, **kwargs)
        results = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        fresh = [t for t in results if t.untyped_storage().data_ptr() not in given]
        self.made |= {t.untyped_storage().data_ptr() for t in fresh}
        if func.overloadpacket in EMPTY:
            self.graph.memory += results
        elif fresh or written:  # anything else is another look at the same memory
            bare = tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs, results))
            self.graph.operations.append((func, *bare))
        return result

    def launched(self, launch: Any, executor: Any, args: Any, kwargs: Any) -> None:
        """Write a kernel's launch down."""
        args, kwargs = tree_map_only(Tensor, torch.Tensor.detach, (args, kwargs))
        self.graph.operations.append((launch, (executor, *args), kwargs, []))

    @staticmethod
    def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
        arguments = func._schema.arguments
        values = [*zip(arguments, args, strict=False), *((a, kwargs[a.name]) for a in arguments if a.name in kwargs)]
        marked = [v for a, v in values if a.alias_info is not None and a.alias_info.is_write]
        return [t for t in tree_leaves(marked) if isinstance(t, Tensor)]
