"""Clipping and noise on a client's update: exact norms, the right scale, and nothing at all where nothing was asked."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedfeat.config.config import Config
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.federation.privacy import clipped, delta_of, epsilon_of, noise_for, protect
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset

GROUP = {"norm": "group"}


def run(config: Config, folder: Path) -> tuple[dict[str, Any], Tensor]:
    experiment = Experiment(config, toy_dataset())
    progress = Progress()
    return experiment.run(RunFolder.create(folder, config, {}), progress, ()), progress.weights


def replies(config: Config) -> list[tuple[Tensor, Payload, int]]:
    """What clients send in the first round: (received, reply, number of trained entries)."""
    engine = Experiment(config, toy_dataset()).engine
    received = engine.begin_task(0)
    clients = [int(k) for k in engine.scenario.present(0)]
    found = []
    for _, reply in engine.ask("train", {k: {"weights": received} for k in clients}):
        assert isinstance(reply, dict)
        found.append((received, {**reply, "weights": tensor_of(reply, "weights").clone()}, engine.model.num_trainable))
    return found


@pytest.mark.parametrize("together", [1, 3])
def test_updates_have_the_norm_they_are_clipped_to(together: int) -> None:
    free = toy_config("finetune", engine={"together": together})
    tight = toy_config("finetune", engine={"together": together}, privacy={"clip": 0.01})
    for (received, reply, size), (_, limited, _) in zip(replies(free), replies(tight), strict=True):
        update = tensor_of(reply, "weights")[:size] - received[:size]
        short = tensor_of(limited, "weights")[:size] - received[:size]
        assert float(update.norm()) > 0.1
        assert float(short.norm()) == pytest.approx(0.01, rel=1e-4)
        assert float(torch.nn.functional.cosine_similarity(update, short, dim=0)) == pytest.approx(1, abs=1e-5)
        # Running statistics of BatchNorm and all numbers are as without clipping.
        assert torch.equal(tensor_of(limited, "weights")[size:], tensor_of(reply, "weights")[size:])
        assert {k: v for k, v in limited.items() if k != "weights"} == {
            k: v for k, v in reply.items() if k != "weights"
        }


@given(st.integers(1, 40), st.floats(0.01, 100), st.floats(0.01, 100), st.integers(0, 2**32))
def test_clipping_shortens_and_never_lengthens(size: int, length: float, clip: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    received = torch.from_numpy(rng.standard_normal(size))
    step = torch.from_numpy(rng.standard_normal(size))
    trained = received + step * length
    out = clipped(trained, received, clip)
    before, after = float((trained - received).norm()), float((out - received).norm())
    assert after == pytest.approx(min(before, clip), rel=1e-9)
    if before <= clip:
        assert torch.equal(out, trained)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_none_does_not_open_the_limit_for_others(odd: float) -> None:
    trained = torch.tensor([1000.0, -2000.0, odd, 5.0])
    out = clipped(trained, torch.zeros(4), 1.0)
    assert not (out.abs() > 1).any()


def test_a_limit_that_nobody_reaches_changes_no_byte(tmp_path: Path) -> None:
    _, plain = run(toy_config("fedcbdr+feat"), tmp_path / "plain")
    result, wide = run(toy_config("fedcbdr+feat", privacy={"clip": 1e6}), tmp_path / "wide")
    assert plain.numpy().tobytes() == wide.numpy().tobytes()
    assert result["privacy"] == {"clip": 1e6}


def test_noise_has_the_stated_scale_and_no_direction() -> None:
    clip, noise = 0.5, 4.0
    quiet = replies(toy_config("finetune", model=GROUP, privacy={"clip": clip}))
    loud = replies(toy_config("finetune", model=GROUP, privacy={"clip": clip, "noise": noise}))
    parts = [
        (tensor_of(b, "weights")[:size] - tensor_of(a, "weights")[:size]).double()
        for (_, a, size), (_, b, _) in zip(quiet, loud, strict=True)
    ]
    numbers = torch.cat(parts) / (clip * noise)
    count = len(numbers)
    assert count > 5000
    assert abs(float(numbers.mean())) < 4 / math.sqrt(count)
    assert float(numbers.var()) == pytest.approx(1, abs=4 * math.sqrt(2 / count))
    assert float((numbers.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=4 * 0.47 / math.sqrt(count))
    size = len(parts[0])
    for a, b in ((0, 1), (1, 2), (0, 2)):  # clients do not share their noise
        assert abs(float(torch.corrcoef(torch.stack([parts[a], parts[b]]))[0, 1])) < 5 / math.sqrt(size)


def test_a_simulation_with_noise_can_be_repeated(tmp_path: Path) -> None:
    config = toy_config("herding+feat", model=GROUP, privacy={"clip": 1.0, "noise": 0.01})
    _, first = run(config, tmp_path / "first")
    _, second = run(config, tmp_path / "second")
    _, quiet = run(toy_config("herding+feat", model=GROUP, privacy={"clip": 1.0}), tmp_path / "quiet")
    assert first.numpy().tobytes() == second.numpy().tobytes()
    assert not torch.equal(first, quiet)


def test_noise_of_a_client_with_a_secret_belongs_to_the_request() -> None:
    engine = Experiment(toy_config("finetune", model=GROUP, privacy={"clip": 1.0, "noise": 1.0}), toy_dataset()).engine
    received = engine.begin_task(0)
    simulated = engine.client(0)
    owner = replace(simulated, secret=11)
    sent, other = torch.zeros(3), torch.tensor([0.0, 0.0, 1e-9])
    assert noise_for(simulated, sent).integers(2**62) == noise_for(simulated, other).integers(2**62)
    assert noise_for(owner, sent).integers(2**62) == noise_for(owner, sent).integers(2**62)
    assert noise_for(owner, sent).integers(2**62) != noise_for(owner, other).integers(2**62)
    twice = [protect({"weights": received.clone()}, {"weights": received}, owner)["weights"] for _ in range(2)]
    assert torch.equal(*twice), "asked again, it tells nothing new"  # type: ignore[arg-type]


def test_a_client_without_samples_sends_no_noise() -> None:
    engine = Experiment(toy_config("finetune", model=GROUP, privacy={"clip": 1.0, "noise": 1.0}), toy_dataset()).engine
    weights = engine.begin_task(0)
    assert protect({"samples": 0}, {"weights": weights}, engine.client(0)) == {"samples": 0}


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("finetune", {"privacy": {"noise": 1.0}}, "privacy: noise is measured in units of clip; set clip too"),
        ("finetune", {"privacy": {"clip": 1.0, "delta": 0.1}}, "delta has no meaning without noise"),
        ("finetune", {"privacy": {"clip": 0.0}}, "privacy.clip: input should be greater than 0"),
        ("finetune", {"privacy": {"clip": 1.0, "noise": 1.0}}, "set model.norm = 'group'"),
        ("finetune+scaffold", {"privacy": {"clip": 1.0, "noise": 1.0}, "model": GROUP}, "'control_change'"),
    ],
)
def test_settings_that_protect_nothing_are_refused(method: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        toy_config(method, **changes)
    assert message in str(raised.value)


def test_scaffold_would_give_the_update_away() -> None:
    """Why it is refused: the server can compute the trained weights from what it sends besides."""
    from fedfeat.algorithm.settings import learning_rate
    from fedfeat.methods.scaffold import effective_steps

    config = toy_config("finetune+scaffold", model=GROUP)
    engine = Experiment(config, toy_dataset()).engine
    received = engine.begin_task(0)
    size = engine.model.num_trainable
    request: Payload = {"weights": received, "control": torch.zeros(size)}
    ((_, reply),) = engine.ask("train", {0: request})
    assert isinstance(reply, dict)
    samples, train = int(reply["samples"]), config.train  # type: ignore[arg-type]
    steps = -(-samples // train.batch) * train.local_epochs
    length = learning_rate(train, 0) * effective_steps(steps, train.momentum)
    guessed = received[:size] - length * tensor_of(reply, "control_change")
    assert torch.allclose(guessed, tensor_of(reply, "weights")[:size], atol=1e-5)


def test_the_result_states_the_budget_and_what_it_leaves_out(tmp_path: Path) -> None:
    config = toy_config("herding+feat", model=GROUP, privacy={"clip": 1.0, "noise": 20.0, "delta": 1e-3})
    result, _ = run(config, tmp_path / "run")
    stated = result["privacy"]
    assert stated["releases"] == 3 * 2  # tasks and rounds
    assert stated["epsilon"] == pytest.approx(epsilon_of(2 * math.sqrt(6) / 20, 1e-3))
    assert stated["not_covered"] == ["samples", "losses", "num_tail", "prior_head", "prior_tail"]


# Deviations that a Gaussian mechanism of sensitivity 1 needs, by Balle and Wang's algorithm.
@pytest.mark.parametrize(("epsilon", "delta", "deviation"), [(1.0, 1e-5, 3.730631634816464), (0.1, 1e-5, 30.90)])
def test_known_values_of_the_gaussian_mechanism(epsilon: float, delta: float, deviation: float) -> None:
    assert epsilon_of(1 / deviation, delta) == pytest.approx(epsilon, rel=1e-2 if deviation == 30.90 else 1e-6)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.0), (0.5, 0.3), (1.0, 1.0), (2.0, 5.0), (4.0, 12.0)])
def test_delta_is_the_integral_that_defines_it(mu: float, epsilon: float) -> None:
    """``delta = integral of max(0, p - e^epsilon q)`` with p = N(mu, 1) and q = N(0, 1)."""
    x = np.linspace(-12, 16, 2_000_001)
    p, q = (np.exp(-((x - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (mu, 0.0))
    integral = np.trapezoid(np.maximum(0, p - math.exp(epsilon) * q), x)
    assert delta_of(mu, epsilon) == pytest.approx(integral, rel=1e-5, abs=1e-12)


@given(st.floats(0.01, 50), st.floats(1e-9, 0.4))
def test_epsilon_is_the_inverse_of_delta_and_below_the_renyi_bound(mu: float, delta: float) -> None:
    epsilon = epsilon_of(mu, delta)
    if epsilon > 0:
        assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-4)
    # Renyi divergence of order a is a mu^2 / 2; its conversion gives mu^2 / 2 + mu sqrt(2 log(1 / delta)) at best.
    assert epsilon <= mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1e-9
