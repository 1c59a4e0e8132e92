"""The balanced loss and distillation beside replay: values by hand, what a client counts, and what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedfeat.algorithm.losses import soft_cross_entropy
from fedfeat.core.errors import ConfigError
from fedfeat.methods.balanced import LOG_PRIOR, BalancedSettings, ClassFrequencies, log_frequencies
from fedfeat.methods.distil import DistilSettings, cosine_distance, kl_to_teacher
from fedfeat.runs.experiment import Experiment
from toy import toy_config, toy_dataset
from toy_runs import extra_traffic, run_toy

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)
COUNTS = torch.tensor([1, 3, 29, 49])  # two old classes, two new ones


def test_frequencies_of_groups_by_hand():
    # With one added: 2 and 4 have the mean 3, 30 and 50 the mean 40; all together 86.
    expected = torch.tensor([3.0, 3.0, 40.0, 40.0]) / 86
    assert torch.allclose(log_frequencies(COUNTS, 2).exp(), expected)


def test_frequencies_of_a_client_by_hand():
    expected = torch.tensor([2.0, 4.0, 30.0, 50.0]) / 86
    assert torch.allclose(log_frequencies(COUNTS, 2, scope="client").exp(), expected)


def test_the_first_task_is_plain_in_groups():
    prior = log_frequencies(COUNTS, 0)
    logits, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 0])
    assert torch.allclose(F.cross_entropy(logits + prior, labels), F.cross_entropy(logits, labels))


@PROPERTY
@given(counts=st.lists(st.integers(0, 500), min_size=2, max_size=9), data=st.data())
def test_frequencies_are_finite_and_add_up_to_one(counts, data):
    num_old = data.draw(st.integers(0, len(counts) - 1))
    for scope in ("groups", "client"):
        prior = log_frequencies(torch.tensor(counts), num_old, scope=scope)
        assert torch.isfinite(prior).all()
        assert float(prior.exp().sum()) == pytest.approx(1, abs=1e-5)


def test_a_balanced_target_makes_rare_classes_pay_more():
    """A rare class must reach a larger logit for the same loss: its gradient is larger."""
    logits = torch.zeros(2, 4, requires_grad=True)
    F.cross_entropy(logits + log_frequencies(COUNTS, 2), torch.tensor([0, 3])).backward()
    assert logits.grad[0, 0].abs() > logits.grad[1, 3].abs()


def second_task(method, **changes):
    """An engine in task 2, with exemplars, and what a client is asked with."""
    experiment = Experiment(toy_config(method, **changes), toy_dataset())
    engine = experiment.engine
    engine.begin_task(0)
    kept = engine.client(0).samples[:2]
    earlier = engine.model.vector.clone()
    weights = engine.begin_task(1, earlier)
    engine.shared = {"previous_model": earlier}
    engine.states[0] = {"exemplars": kept}
    return engine, engine.client(0), {"weights": weights}


def test_a_client_counts_what_it_trains_on():
    _, client, request = second_task("replay+balanced")
    found = ClassFrequencies(BalancedSettings(scope="client")).start(client, request)(torch.empty(0))[LOG_PRIOR]
    counts = torch.bincount(client.labels(client.local_set), minlength=client.num_classes) + 1.0
    assert counts[: client.num_old].sum() == client.num_old + 2, "the two exemplars are counted"
    assert torch.allclose(found.exp(), counts / counts.sum())


@pytest.mark.parametrize(("changes", "plain"), [({"tau": 0.0}, True), ({"from_task": 3}, True), ({}, False)])
def test_strength_and_first_task(changes, plain):
    engine, client, request = second_task("replay+balanced", balanced=changes)
    prior = engine.method.references[0].start(client, request)(torch.empty(0))[LOG_PRIOR]
    assert bool((prior == 0).all()) == plain


def test_distillation_is_the_soft_cross_entropy_less_the_teachers_entropy():
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 6, 4, generator=generator, dtype=torch.double)
    entropy = soft_cross_entropy(teacher, teacher, 2.0)
    assert torch.allclose(kl_to_teacher(student, teacher, 2.0), soft_cross_entropy(student, teacher, 2.0) - entropy)
    assert float(kl_to_teacher(teacher, teacher, 2.0)) == pytest.approx(0, abs=1e-12)


def test_distillation_by_hand():
    """At T = 2 the teacher says (3/4, 1/4), the student (1/2, 1/2)."""
    teacher, student = torch.tensor([[2 * math.log(3.0), 0.0]]), torch.zeros(1, 2)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(kl_to_teacher(student, teacher, 2.0)) == pytest.approx(expected, rel=1e-6)


def test_the_distance_of_features_is_of_their_directions():
    """60 degrees apart, and the same direction at another length."""
    teacher, student = torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.5, 0.5 * math.sqrt(3)], [3.0, 3.0]])
    assert float(cosine_distance(student, teacher)) == pytest.approx((0.5 + 0.0) / 2, abs=1e-6)


def test_features_are_taught_on_request_from_the_second_task_on():
    engine, client, request = second_task("replay+distil", distil={"features": 0.5})
    assert [t.name for t in engine.method.active_terms(0)] == ["ce"]
    assert engine.ops["train"](client, request)["loss.distil_features"] > 0
    engine, client, request = second_task("replay+distil")
    assert "loss.distil_features" not in engine.ops["train"](client, request)


def test_the_weight_follows_the_share_of_old_classes():
    losses = {}
    for weighting in ("share", "constant"):
        engine, client, request = second_task("replay+distil", distil={"weighting": weighting})
        losses[weighting] = engine.ops["train"](client, request)["loss.distil"]
        share = client.num_old / client.num_classes
    first = engine.method.active_terms(0)
    assert [t.name for t in first] == ["ce"], "nothing is distilled in the first task"
    assert 0 < losses["share"] < losses["constant"]
    assert share == 0.5


def test_defaults():
    assert BalancedSettings() == BalancedSettings(scope="groups", tau=1.0, smooth=1.0, from_task=1)
    assert DistilSettings() == DistilSettings(**{"lambda": 2.0, "weighting": "share", "temperature": 2.0})


REFUSED = {
    "fedlwf+balanced": "softmax of 'fedlwf' covers new classes only",
    "target+balanced": "softmax of 'target' covers new classes only",
    "lander+balanced": "softmax of 'lander' covers new classes only",
    "replay+feat+calibrate+balanced": "an imbalance that balanced does not let arise",
    "fedlwf+distil": "teaches in 'fedlwf' already",
    "target+distil": "teaches in 'target' already",
    "lander+distil": "teaches in 'lander' already",
    "replay+distil+distil": "names a part twice",
    "replay+balanced+balanced": "names a part twice",
    "replay+feat+balanced": "an imbalance that balanced does not let arise",
    "replay+balanced+feat": "does not let arise",
    "replay+etf+egc+balanced": "an imbalance that balanced does not let arise",
    "replay+etf+balanced+egc": "does not let arise",
}


@pytest.mark.parametrize(("method", "sentence"), REFUSED.items())
def test_what_does_not_go_together_is_refused(method, sentence):
    with pytest.raises(ConfigError, match=sentence):
        toy_config(method)


def test_the_etf_keeps_a_balanced_loss_in_any_order():
    for method in ("fedcbdr+etf+balanced", "fedcbdr+balanced+etf"):
        assert toy_config(method).build_method().loss.name == "balanced"


def test_nothing_more_is_sent(tmp_path):
    plain, ours = (run_toy(tmp_path, m).result for m in ("replay+etf", "replay+etf+balanced+distil"))
    assert extra_traffic(ours) == extra_traffic(plain)
    assert ours["traffic"]["up/train/weights"] == plain["traffic"]["up/train/weights"]
