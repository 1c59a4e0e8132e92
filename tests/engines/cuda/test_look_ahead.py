"""What references find ahead of their steps is what they find in them, for plans and batches of any size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from fedfeat.algorithm.method import Capturable
from fedfeat.engines.cuda.local_update import batch_sizes
from fedfeat.engines.cuda.look_ahead import BATCHES, LookAhead, goes_by_image


class Repeated:
    """A captured graph that runs the work itself."""

    def __init__(self, work: Callable[[], None], seen: list[int]) -> None:
        self.work, self.seen = work, seen

    def replay(self) -> None:
        self.seen.append(1)
        self.work()


def captured_look(reference: Capturable, images: Tensor, batch: int) -> tuple[LookAhead, list[int]]:
    """Return a look-ahead that is captured, and a list that grows with every look."""
    seen: list[int] = []

    def capture(work: Callable[[], None], name: str) -> Repeated:
        work()  # as before a capture
        return Repeated(work, seen)

    look = LookAhead([reference], lambda rows: images[rows], batch, torch.device("cpu"))
    look.capture(capture)  # type: ignore[arg-type]
    return look, seen


@given(samples=st.integers(1, 90), batch=st.integers(1, 17), epochs=st.integers(1, 3), stale=st.integers(0, 40))
@example(samples=33, batch=8, epochs=2, stale=7)
def test_every_step_reads_what_its_own_images_give(samples: int, batch: int, epochs: int, stale: int) -> None:
    images = torch.arange(samples * epochs + BATCHES * batch).float() + 0.5
    double = Capturable(lambda found: {"double": 2 * found[:, None], "sign": -found}, by_image=True)
    look, seen = captured_look(double, images, batch)
    look.reach(min(stale, samples), samples)  # an update before, which ended anywhere
    look.rewind()
    seen.clear()
    row, last = 0, samples * epochs
    for size in batch_sizes(samples, batch, epochs):
        look.reach(row + size, last)
        rows = torch.arange(row, row + size)
        found = look.read(rows)
        assert torch.equal(found["double"], 2 * images[rows, None])
        assert torch.equal(found["sign"], -images[rows])
        row += size
    assert last <= look.launched < last + batch * (BATCHES - 1), "at most as far beyond the end as a look is long"
    assert len(seen) <= last // (BATCHES * batch) + BATCHES


def test_only_what_says_so_is_called_for_several_batches() -> None:
    assert goes_by_image(Capturable(lambda images: {}, by_image=True))
    assert not goes_by_image(Capturable(lambda images: {}))
    assert not goes_by_image(lambda images: {})


def test_a_look_leaves_no_gradient() -> None:
    weight = torch.ones(1, requires_grad=True)
    look, _ = captured_look(Capturable(lambda x: {"y": x * weight}, by_image=True), torch.ones(20), 2)
    look.reach(2, 2)
    assert not look.read(torch.arange(2))["y"].requires_grad
