"""The steps of a stack as captured graphs: one per number of clients and batch size, replayed without the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedfeat.engines.cuda.capture import captured
from fedfeat.engines.grouping import padded
from fedfeat.engines.stacked import Convolutions, Stack

if TYPE_CHECKING:
    from fedfeat.engines.inprocess import InProcessEngine

Key = tuple[int, int, bool]  # places, batch size, whether these are the first rows


class CapturedStack(Stack):
    """A stack on an NVIDIA GPU. A kind of step runs eagerly once and is captured when it comes again.

    Steps of some of the clients are captured for 1, 2, 4, 8, ... places, and the row that belongs to nobody fills
    the places left over: that adds a model, not a sample to anybody's batch.
    """

    def __init__(
        self, engine: InProcessEngine, rows: int, longest: int, convolutions: Convolutions | None = None
    ) -> None:
        super().__init__(engine, rows, longest, convolutions)
        self.stream = torch.cuda.Stream(engine.device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.members: dict[Key, Tensor] = {}
        self.graphs: dict[Key, torch.cuda.CUDAGraph] = {}

    def take(self, size: int, members: Tensor) -> None:
        """Let some clients train on their next ``size`` samples."""
        places = padded(len(members), self.rows)
        key = (places, size, False)
        known = key in self.members
        if not known:
            self.members[key] = torch.empty(places, dtype=torch.long, device=members.device)
        self.members[key].fill_(self.rows)
        self.members[key][: len(members)].copy_(members)
        self._launch(key, known=known)

    def take_all(self, size: int, count: int) -> None:
        """Let the clients in the first ``count`` rows train on their next ``size`` samples."""
        key = (count, size, True)
        known = key in self.members
        if not known:
            self.members[key] = self.places[:count].clone()
        self._launch(key, known=known)

    def _launch(self, key: Key, *, known: bool) -> None:
        _, size, whole = key
        if not known:
            # Libraries choose their kernels and allocate their workspaces now, on the stream of the later capture.
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.step(size, self.members[key], whole=whole)
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        if key not in self.graphs:
            self.graphs[key] = captured(lambda: self.step(size, self.members[key], whole=whole), self.pool, self.stream)
        self.graphs[key].replay()
