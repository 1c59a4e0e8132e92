"""What every registered method promises; a new method is held to it by being registered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfeat.algorithm.engine import Lost
from fedfeat.core.payload import Payload
from fedfeat.federation.progress import Progress
from fedfeat.methods import all_methods
from fedfeat.runs.contract.hold import PROMISES, keep
from fedfeat.runs.contract.promise import NotApplicable
from fedfeat.runs.contract.trial import Trial
from fedfeat.runs.experiment import Experiment
from toy import SMALL, toy_config, toy_dataset

# The parts that most others are made of; make quick holds only these to the contract.
QUICK = ("finetune", "fedlwf", "fedcbdr+feat", "refed+moon", "fedcbdr+scaffold")
RULES = ("median", "trimmed_mean", "krum", "multi_krum", "norm_bounding")
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


@pytest.mark.parametrize("method", list(methods()))
def test_robust_rules_hold_every_number_that_is_joined(method: str, tmp_path: Path) -> None:
    """One of three clients sends everything a hundred thousandfold; each method meets one of the rules."""
    rule = RULES[all_methods().index(method) % len(RULES)]
    train = {"rounds": 1, "local_epochs": 1, "robust": rule, "attackers": 0.4}
    experiment = Experiment(toy_config(method, train=train, scenario={"tasks": 2}), toy_dataset())
    engine, ask = experiment.engine, experiment.engine.ask

    def attacked(op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        for client, reply in ask(op, requests):
            if client == 1 and not isinstance(reply, Lost):
                reply = {k: 1e5 * v if _is_joined(k, v) else v for k, v in reply.items()}
            yield client, reply

    engine.ask = attacked  # type: ignore[method-assign]
    progress = Progress()
    experiment.run(experiment.new_folder(tmp_path / "run"), progress, ())
    numbers = [progress.weights, *progress.tensors.values(), *(torch.tensor(v) for v in progress.numbers.values())]
    assert all(float(value.double().abs().max()) < 1e3 for value in numbers), rule


def _is_joined(name: str, value: object) -> bool:
    """Whether an entry is joined with those of others, and not a number of samples or a row per sample."""
    tensor = isinstance(value, torch.Tensor) and value.is_floating_point() and name != "features"
    return tensor or (isinstance(value, float) and not name.startswith("loss."))
