"""What frozen networks make of a local update's images, a few batches before the steps that use it.

A frozen network does not care which batch an image belongs to, and on a GPU a large batch costs less per image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fedfeat.algorithm.method import Capturable, ReferenceFunction
from fedfeat.algorithm.step import Work

BATCHES = 4  # that are looked at together

Capture = Callable[[Work, str], torch.cuda.CUDAGraph]
ImagesOf = Callable[[Tensor], Tensor]  # rows of the update's plan -> images


class LookAhead:
    """Calls references that go by image for the next rows of a plan, and keeps what they return until it is read.

    :param references: those of a captured step.
    :param images_of: makes the images of rows; for all sizes alike.
    """

    def __init__(
        self, references: Sequence[ReferenceFunction], images_of: ImagesOf, batch: int, device: torch.device
    ) -> None:
        self.references, self.images_of, self.batch = references, images_of, batch
        self.ring = 2 * BATCHES * batch  # rows that are kept: those of a step, and those of the next look
        self.found: dict[str, Tensor] = {}
        self.cursor = torch.zeros((), dtype=torch.long, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.launched = 0  # rows, on the host

    def capture(self, capture: Capture) -> None:
        """Capture a look at several batches, and one at a single batch for the end of a plan."""
        for size in (BATCHES * self.batch, self.batch):
            self.graphs[size] = capture(partial(self._look, size), "look ahead")
            self.rewind()

    def rewind(self) -> None:
        """Begin with the first row of a plan."""
        self.cursor.zero_()
        self.launched = 0

    def reach(self, row: int, last: int) -> None:
        """Launch looks until all rows before ``row`` were seen, of ``last`` rows that the plan has."""
        while self.launched < row:
            most = last - self.launched > (BATCHES - 1) * self.batch
            size = BATCHES * self.batch if most else self.batch
            self.graphs[size].replay()
            self.launched += size

    def read(self, rows: Tensor) -> dict[str, Tensor]:
        """Return what was found for rows."""
        return {key: kept[rows % self.ring] for key, kept in self.found.items()}

    @torch.no_grad()
    def _look(self, size: int) -> None:
        rows = self.cursor + torch.arange(size, device=self.cursor.device)
        images = self.images_of(rows)
        for reference in self.references:
            for key, value in reference(images).items():
                if key not in self.found:  # in the run before the capture
                    self.found[key] = value.new_zeros(self.ring, *value.shape[1:])
                self.found[key].index_copy_(0, rows % self.ring, value)
        self.cursor += size


def goes_by_image(reference: ReferenceFunction) -> bool:
    """Return whether a reference may be called for the images of several batches together."""
    return isinstance(reference, Capturable) and reference.by_image
