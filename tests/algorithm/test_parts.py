"""Parts and the order of their work: those that override nothing change nothing; references follow the batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedfeat.algorithm import registry
from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Method, Penalty, Reference, ReferenceFunction, ServerStep, Statistic, TaskEndStep
from fedfeat.core.payload import Payload
from fedfeat.core.settings import Settings
from toy import untimed
from toy_runs import run_toy


class Idle(Penalty):
    name = "idle"


class NoReference(Reference): ...


class NoStatistic(Statistic): ...


class NoServerStep(ServerStep): ...


class NoTaskEnd(TaskEndStep): ...


@pytest.fixture
def _registered() -> Iterator[None]:
    before = dict(registry.PARTS)
    yield
    registry.PARTS.clear()
    registry.PARTS.update(before)


@pytest.mark.usefixtures("_registered")
def test_parts_that_override_nothing_change_nothing(tmp_path: Path) -> None:
    @registry.base("bare")
    def bare(settings: Settings) -> Method:
        return Method("bare")

    @registry.base("idle")
    def idle(settings: Settings) -> Method:
        return Method(
            "idle",
            references=(NoReference(),),
            penalties=(Idle(),),
            statistics=(NoStatistic(),),
            server_steps=(NoServerStep(),),
            task_end=(NoTaskEnd(),),
            replay=NoTaskEnd(),
        )

    (tmp_path / "runs").mkdir()
    without, with_idle = (run_toy(tmp_path / "runs", name) for name in ("bare", "idle"))
    assert with_idle.weights == without.weights
    left_out = ("method", "config")
    one, other = ({k: v for k, v in untimed(r.result).items() if k not in left_out} for r in (without, with_idle))
    assert one == other


class WatchesStatistics(Reference):
    """Notes whether BatchNorm has seen the step's batch when the reference is asked, for the first step of a client."""

    def __init__(self) -> None:
        self.moved: list[bool] = []

    def start(self, client: Client, request: Payload) -> ReferenceFunction:
        norm = next(m for m in client.network.modules() if isinstance(m, nn.BatchNorm2d))
        assert norm.running_mean is not None
        before = norm.running_mean.clone()
        asked = iter([True])

        def look(images: Tensor) -> dict[str, Tensor]:
            if next(asked, False):
                assert norm.running_mean is not None
                self.moved.append(not torch.equal(before, norm.running_mean))
            return {}

        return look


@pytest.mark.usefixtures("_registered")
def test_references_are_asked_after_the_network_has_seen_the_batch(tmp_path: Path) -> None:
    """A reference may run the network that is trained: its running statistics depend on the order of passes."""
    reference = WatchesStatistics()

    @registry.base("watching")
    def watching(settings: Settings) -> Method:
        return Method("watching", references=(reference,), trains_on_references=True)

    run_toy(tmp_path, "watching")
    assert reference.moved
    assert all(reference.moved)
