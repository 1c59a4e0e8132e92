import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedfeat.algorithm.losses import quadratic_pull
from fedfeat.core.errors import ConfigError
from fedfeat.federation.loop import Federation
from fedfeat.federation.progress import Progress
from fedfeat.methods.fedewc import FISHER, FedEWCSettings, blend, fisher_diagonal, weighted_average
from fedfeat.models import as_vector
from fedfeat.runs.experiment import Experiment
from toy import PER_CLASS, scenario_from, toy_config, toy_dataset
from toy_runs import extra_traffic, run_toy, trainable_bytes

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


def test_the_pull_by_hand():
    weights, anchor = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0.0, 2.0, 1.0])
    fisher, gradient = torch.tensor([0.5, 9.0, 0.25]), torch.tensor([10.0, 20.0, 30.0])
    value = quadratic_pull(weights, gradient, anchor, fisher, weight=4.0)
    # moved by (1, 0, -2): 4 * (0.5, 0, -0.5) and 4/2 * (0.5 * 1 + 0.25 * 4)
    assert gradient.tolist() == [12.0, 20.0, 28.0]
    assert float(value) == 3.0


@PROPERTY
@given(seed=st.integers(0, 1000), weight=st.floats(0, 2000))
def test_the_pull_is_the_gradient_of_the_penalty(seed, weight):
    generator = torch.Generator().manual_seed(seed)
    w, anchor, fisher = torch.randn(3, 20, generator=generator, dtype=torch.double)
    fisher = fisher.abs()
    traced = w.clone().requires_grad_()
    penalty = 0.5 * weight * (fisher * (traced - anchor).square()).sum()
    penalty.backward()
    gradient = torch.zeros_like(w)
    assert torch.allclose(quadratic_pull(w, gradient, anchor, fisher, weight=weight), penalty.detach())
    assert torch.allclose(gradient, traced.grad)


@pytest.fixture
def engine():
    engine = Experiment(toy_config("fedewc"), toy_dataset()).engine
    engine.begin_task(0)
    return engine


def batches_of(engine, *sizes):
    client = engine.client(0)
    parts = client.samples[: sum(sizes)].split(list(sizes))
    return [(client.images.plain(p), client.labels(p)) for p in parts]


def test_fisher_is_the_mean_of_squared_batch_gradients(engine):
    """Two batches of unlike size count alike; the gradient of a batch's mean is squared, not each sample's."""
    batches = batches_of(engine, 6, 2)
    engine.network.eval()
    parameters = list(engine.network.parameters())
    squares = []
    for images, labels in batches:
        gradients = torch.autograd.grad(F.cross_entropy(engine.network(images).logits, labels), parameters)
        squares.append(as_vector(g for g in gradients).square())
    fisher = fisher_diagonal(engine.model, batches, limit=1e9)
    assert torch.allclose(fisher, (squares[0] + squares[1]) / 2, rtol=1e-4, atol=1e-9)
    assert (engine.model.gradient == 0).all(), "a gradient was left for the next client"


def test_fisher_is_cut_off_after_the_mean(engine):
    batches = batches_of(engine, 4, 4)
    engine.network.eval()
    whole = fisher_diagonal(engine.model, batches, limit=1e9)
    limit = float(whole.median()) + 1e-12
    cut = fisher_diagonal(engine.model, batches, limit=limit)
    assert torch.equal(cut, whole.clamp(max=limit))
    assert 0 < (cut < whole).float().mean() < 1


def test_fisher_lets_all_seen_classes_compete(engine):
    """Unlike local training, so rows of old classes matter to the new task's diagonal too."""
    engine.begin_task(1, engine.model.vector.clone())
    engine.network.eval()
    fisher = fisher_diagonal(engine.model, batches_of(engine, 8), limit=1e9)
    engine.model.vector[: len(fisher)] = fisher  # read it by name
    assert (engine.model.named_values()["head.bias"][:2] > 0).all()


def test_measuring_leaves_running_statistics_alone(engine):
    weights = engine.model.vector.clone()
    reply = engine.ops["fisher"](engine.client(0), {"weights": weights})
    assert torch.equal(engine.model.vector, weights)
    assert len(reply[FISHER]) == engine.model.num_trainable
    assert reply["samples"] == len(engine.client(0).samples)
    assert reply[FISHER].max() <= 1e-4


def test_measuring_does_not_depend_on_who_was_asked_before(engine):
    weights = engine.model.vector.clone()
    first = engine.ops["fisher"](engine.client(1), {"weights": weights})[FISHER]
    engine.ops["train"](engine.client(0), {"weights": weights})
    assert torch.equal(engine.ops["fisher"](engine.client(1), {"weights": weights})[FISHER], first)


def test_clients_are_averaged_by_their_samples():
    replies = [
        (0, {FISHER: torch.tensor([1.0, 0.0]), "samples": 1}),
        (1, {"samples": 0}),
        (2, {FISHER: torch.tensor([3.0, 4.0]), "samples": 3}),
    ]
    assert weighted_average(iter(replies)).tolist() == [2.5, 3.0]
    assert weighted_average([(0, {"samples": 0})]) is None


def test_tasks_are_blended_entry_by_entry():
    old, new = torch.tensor([4.0, 8.0, 0.0]), torch.tensor([0.0, 4.0, 5.0])
    assert blend(old, new, torch.tensor([0.5, 0.75, 0.0])).tolist() == [2.0, 7.0, 5.0]


def end_task(engine, progress):
    """Run the method's task_end step as the loop does."""
    federation = Federation(engine.config, engine.scenario, engine.method, engine, progress)
    progress.weights = engine.model.vector.clone()
    (step,) = engine.method.task_end
    step.at_task_end(federation._task_end(engine.task))


def test_two_boundaries_by_hand(engine):
    """After task 2 half of the old entries comes from task 1 (2 of 4 classes), new rows from task 2 alone."""
    progress = Progress()
    merged = []
    for task in range(2):
        if task:
            engine.begin_task(1, engine.model.vector.clone())
        weights = engine.model.vector.clone()
        end_task(engine, progress)
        replies = [engine.ops["fisher"](engine.client(k), {"weights": weights}) for k in range(3)]
        sizes = [len(engine.client(k).samples) for k in range(3)]
        assert sum(sizes) == 2 * PER_CLASS
        merged.append(sum(n * r[FISHER] for n, r in zip(sizes, replies, strict=True)) / sum(sizes))
        if task == 0:
            assert torch.allclose(progress.shared[FISHER], merged[0])
            assert progress.delivered[FISHER] == set()
    expected = (engine.model.widened(merged[0], 2) + merged[1]) / 2
    new_rows = engine.model.widened(torch.ones_like(merged[0]), 2) == 0
    assert int(new_rows.sum()) == 2 * (16 + 1)
    expected[new_rows] = merged[1][new_rows]
    assert torch.allclose(progress.shared[FISHER], expected)


def test_a_task_without_data_leaves_the_old_diagonal_in_todays_layout(engine):
    progress = Progress()
    end_task(engine, progress)
    first = progress.shared[FISHER]
    engine.begin_task(1, engine.model.vector.clone())
    engine.scenario = scenario_from(engine.scenario.labels, [[[], [], []]] * 3)
    end_task(engine, progress)
    assert torch.equal(progress.shared[FISHER], engine.model.widened(first, 2))


def test_the_penalty_reaches_the_trained_weights_and_spares_new_rows(engine):
    previous = engine.model.vector.clone()
    trained = engine.model.num_trainable
    engine.begin_task(1, previous)
    fisher = torch.linspace(0, 1e-4, trained)
    engine.shared = {"previous_model": previous, FISHER: fisher}
    push = engine.method.penalties[0].start(engine.client(0), {})
    model = engine.model
    assert float(push(model.weights, model.gradient)) == 0, "at the anchor there is no pull"
    assert (model.gradient == 0).all()
    model.weights.add_(0.5)
    push(model.weights, model.gradient)
    expected = 1000 * 0.5 * model.widened(fisher, 2)
    assert torch.allclose(model.gradient, expected, rtol=1e-3)
    new_rows = model.widened(torch.ones(trained), 2) == 0
    assert (model.gradient[new_rows] == 0).all()
    assert (model.gradient[~new_rows][1:] > 0).all()


def test_there_is_no_penalty_in_the_first_task(engine):
    assert engine.method.penalties[0].start(engine.client(0), {}) is None


def test_defaults():
    expected = FedEWCSettings(**{"mode": "corrected", "lambda": 1000.0, "fisher_max": 1e-4})
    assert FedEWCSettings() == expected
    with pytest.raises(ConfigError, match=r"fedewc\.mode"):
        toy_config("fedewc", fedewc={"mode": "official"})


@pytest.mark.parametrize("changes", [{"lambda": 0}, {"mode": "official_effective"}], ids=str)
def test_without_an_effective_penalty_it_is_finetune(changes, tmp_path):
    ours = run_toy(tmp_path, "fedewc", fedewc=changes)
    assert ours.weights == run_toy(tmp_path, "finetune").weights


def test_what_mattered_to_earlier_tasks_moves_less(tmp_path):
    def moved(strength):
        run = run_toy(tmp_path / str(strength), "fedewc", fedewc={"lambda": strength, "fisher_max": 0.01})
        model, shared = run.experiment.engine.model, run.progress.shared
        fisher, anchor = (model.widened(shared[name], 4) for name in (FISHER, "previous_model"))
        return float((fisher * (run.progress.weights[: len(fisher)] - anchor).square()).sum())

    assert moved(1000) < 0.7 * moved(0)


def test_the_official_mode_says_so(tmp_path):
    run = run_toy(tmp_path, "fedewc", fedewc={"mode": "official_effective"})
    assert "official_effective" in run.result["notes"][0]
    assert extra_traffic(run.result) == {}
    assert run_toy(tmp_path / "corrected", "fedewc").result["notes"] == []


def test_one_diagonal_goes_up_and_one_comes_down_per_client_and_task(tmp_path):
    """Three clients, two task ends; each diagonal has the layout of the task that it was measured in."""
    run = run_toy(tmp_path, "fedewc")
    expected = 3 * sum(trainable_bytes("fedewc")[:2])
    assert extra_traffic(run.result) == {"up/fisher/fisher": expected, "down/train/shared.fisher": expected}


def test_the_penalty_is_reported_from_the_second_task_on(tmp_path):
    run_toy(tmp_path, "fedewc")
    events = [json.loads(line) for line in (tmp_path / "fedewc" / "events.jsonl").read_text().splitlines()]
    rounds = [e for e in events if e["event"] == "round"]
    assert [("ewc" in e["losses"]) for e in rounds] == [False] * 2 + [True] * 4
    assert all(np.isfinite(e["losses"].get("ewc", 0)) for e in rounds)
