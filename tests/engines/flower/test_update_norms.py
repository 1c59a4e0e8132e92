"""How large an update is, in units of its round's median and of the model."""

from __future__ import annotations

from typing import Any

import torch

from fedfeat.engines.flower.update_norms import OF_MEDIAN, OF_MODEL, oversized, update_sizes


def test_updates_are_measured_beside_the_median_and_beside_the_model() -> None:
    sent = torch.ones(4)
    requests = {k: {"weights": sent} for k in range(4)}
    replies: Any = {k: {"weights": sent + torch.tensor([0.1 * (k + 1), 0, 0, 0])} for k in range(3)}
    sizes = [s for s in update_sizes(requests, replies, trained=3) if s.of_median]
    assert [round(s.of_median, 4) for s in sizes] == [0.5, 1.0, 1.5]
    assert [round(s.of_model, 4) for s in sizes] == [round(0.1 * k / 3**0.5, 4) for k in (1, 2, 3)]
    assert list(oversized(requests, {**replies, 3: {"weights": sent + 0.5 * OF_MEDIAN}}, trained=3)) == [3]
    statistics = {"weights": sent + torch.tensor([0, 0, 0, 1.1 * OF_MODEL])}
    assert list(oversized(requests, {0: replies[0], 3: statistics}, trained=3)) == [3]
    assert list(oversized(requests, {3: {"weights": sent + 100}}, trained=4, noise=30.0)) == []
