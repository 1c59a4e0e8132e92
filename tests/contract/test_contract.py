"""What every registered method promises; a new method is held to it by being registered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fedfeat.methods import all_methods
from fedfeat.runs.contract.hold import PROMISES, keep
from fedfeat.runs.contract.promise import NotApplicable
from fedfeat.runs.contract.trial import Trial
from toy import SMALL

# The parts that most others are made of; make quick holds only these to the contract.
QUICK = ("finetune", "fedlwf", "fedcbdr+feat", "refed+moon", "fedcbdr+scaffold")
TRIALS: dict[str, Trial] = {}  # by method; a fixture would be made anew when another method comes between


def methods() -> Iterator[Any]:
    """Every method as a parameter, so marked that one worker has all tests that share its reference run."""
    for method in all_methods():
        group = pytest.mark.xdist_group(f"contract-{method}")
        yield pytest.param(method, marks=[group] if method in QUICK else [group, pytest.mark.slow])


@pytest.fixture
def trial(method: str, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    if method not in TRIALS:
        TRIALS[method] = Trial(method, tmp_path_factory.mktemp("contract"), tables=SMALL)
    return TRIALS[method]


@pytest.mark.parametrize("method", list(methods()))
@pytest.mark.parametrize("name", list(PROMISES))
def test_promise(name: str, method: str, trial: Trial) -> None:
    try:
        keep(PROMISES[name], trial)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("method", list(methods()))
def test_the_budget_is_used_in_full(method: str, trial: Trial) -> None:
    experiment = trial.reference.experiment
    if experiment.method.replay is not None and not experiment.method.keeps_everything:
        assert experiment.engine.exemplars() == 2 * 6
