import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.algorithm.losses import quadratic_pull
from fedfeat.core.errors import ConfigError
from fedfeat.methods.fedprox import FedProxSettings
from fedfeat.runs.experiment import Experiment
from toy import toy_config, toy_dataset
from toy_runs import extra_traffic, run_toy

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


def test_the_pull_by_hand():
    weights, anchor, gradient = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0.0, 2.0, 1.0]), torch.ones(3)
    value = quadratic_pull(weights, gradient, anchor, weight=0.5)
    assert gradient.tolist() == [1.5, 1.0, 0.0]
    assert float(value) == 1.25  # 0.5 / 2 * (1 + 0 + 4)


@PROPERTY
@given(seed=st.integers(0, 1000), mu=st.floats(0, 10))
def test_the_pull_is_the_gradient_of_the_penalty(seed, mu):
    w, anchor = torch.randn(2, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    traced = w.clone().requires_grad_()
    penalty = mu / 2 * (traced - anchor).square().sum()
    penalty.backward()
    gradient = torch.zeros_like(w)
    assert torch.allclose(quadratic_pull(w, gradient, anchor, weight=mu), penalty.detach())
    assert torch.allclose(gradient, traced.grad)


def test_defaults():
    assert FedProxSettings().mu == 0.01
    with pytest.raises(ConfigError, match=r"fedprox\.mu"):
        toy_config("finetune+fedprox", fedprox={"mu": -1})


def local_update(mu):
    engine = Experiment(toy_config("finetune+fedprox", fedprox={"mu": mu}), toy_dataset()).engine
    weights = engine.begin_task(0)
    before = weights.clone()
    reply = engine.ops["train"](engine.client(0), {"weights": weights})
    assert torch.equal(weights, before), "training wrote into the server's weights"
    trained = engine.model.num_trainable
    return float((reply["weights"] - weights)[:trained].norm()), reply


def test_a_stronger_pull_keeps_a_client_nearer():
    distances = [local_update(mu)[0] for mu in (0, 0.1, 1.0, 5.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[3] < 0.7 * distances[0]


def test_the_penalty_is_reported():
    assert "loss.prox" not in local_update(0)[1]
    assert local_update(0.01)[1]["loss.prox"] > 0


def test_the_pull_is_to_the_rounds_own_model(tmp_path):
    """Were it to the first one, a strong pull would stop all learning; each round may still move."""
    run = run_toy(tmp_path, "finetune+fedprox", fedprox={"mu": 1.0}, train={"rounds": 12})
    assert run.result["accuracy_after_task"][0] > 75


def test_without_strength_it_is_its_base(tmp_path):
    base = run_toy(tmp_path, "fedcbdr")
    assert run_toy(tmp_path / "off", "fedcbdr+fedprox", fedprox={"mu": 0}).weights == base.weights
    assert run_toy(tmp_path / "on", "fedcbdr+fedprox").weights != base.weights


def test_nothing_extra_is_sent(tmp_path):
    ours, base = run_toy(tmp_path, "fedcbdr+fedprox"), run_toy(tmp_path, "fedcbdr")
    assert extra_traffic(ours.result) == extra_traffic(base.result)


def test_it_comes_on_top_of_the_bases_own_penalty():
    method = toy_config("fedewc+fedprox").build_method()
    assert [p.name for p in method.penalties] == ["ewc", "prox"]
