"""Parts that inherit from their protocol and override nothing: a method of such parts trains as one without any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedfeat.algorithm import registry
from fedfeat.algorithm.method import Method, Penalty, Reference, ServerStep, Statistic, TaskEndStep
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
