import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from fedfeat.core.rng import rng_at
from fedfeat.data.augment import plan_epoch
from fedfeat.federation.average import average
from fedfeat.federation.loop import Federation
from fedfeat.federation.progress import Progress
from fedfeat.methods.scaffold import CHANGE, CONTROL, corrected, effective_steps
from fedfeat.models import as_vector
from fedfeat.runs.experiment import Experiment
from toy import toy_config, toy_dataset
from toy_runs import extra_traffic, run_toy, trainable_bytes

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)
ONE_STEP = {"rounds": 2, "local_epochs": 1, "batch": 64, "lr": 0.05, "weight_decay": 0.0}


def test_the_correction_by_hand():
    gradient = torch.tensor([1.0, 1.0])
    value = corrected(torch.tensor([3.0, 1.0]), gradient, torch.tensor([1.0, 1.0]), torch.tensor([0.5, -2.0]))
    assert gradient.tolist() == [1.5, -1.0]
    assert float(value) == 1.0  # <correction, moved> = 0.5 * 2 - 2 * 0


@PROPERTY
@given(steps=st.integers(1, 60), momentum=st.floats(0, 0.95))
def test_effective_steps_of_a_constant_gradient(steps, momentum):
    """Momentum from rest on a gradient of one goes exactly as far as so many plain steps."""
    velocity, distance = 0.0, 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0
        distance += velocity
    assert effective_steps(steps, momentum) == pytest.approx(distance, rel=1e-9)


@pytest.mark.parametrize(("steps", "momentum", "expected"), [(7, 0.0, 7), (1, 0.9, 1), (2, 0.9, 2.9), (3, 0.5, 4.25)])
def test_effective_steps_by_hand(steps, momentum, expected):
    assert effective_steps(steps, momentum) == pytest.approx(expected)


@pytest.fixture
def federation():
    """A federation whose clients take one step per round: the average gradient of a local update is known exactly."""
    experiment = Experiment(toy_config("finetune+scaffold", train=ONE_STEP), toy_dataset())
    federation = Federation(experiment.config, experiment.scenario, experiment.method, experiment.engine, Progress())
    federation._begin(0)
    return federation


def play_round(federation, clients=(0, 1, 2), round=0):
    """One round as the loop plays it; returns requests and replies."""
    federation.engine.round = round
    requests = federation._requests(list(clients), round)
    replies = {}

    def listening():
        for client, reply in federation.exchange("train", requests):
            replies[client] = dict(reply)
            yield client, reply

    federation._take(average(listening(), "uniform"))
    return requests, replies


def local_gradient(federation, client_id, round):
    """The gradient of one local update's only batch, at the global model."""
    engine = federation.engine
    engine.round = round
    client = engine.client(client_id)
    draws = plan_epoch(
        rng_at(7, "batches", client.task, round, client_id, 0), len(client.samples), client.images.augmentation
    )
    order = client.samples[draws.order]
    engine.model.load(federation.progress.weights)
    engine.network.train()
    images = client.images.augmented(order, draws, slice(0, 64))
    loss = F.cross_entropy(engine.network(images).logits, client.labels(order))
    return as_vector(g for g in torch.autograd.grad(loss, list(engine.network.parameters())))


def test_one_step_makes_the_control_variate_the_local_gradient(federation):
    """Also in the second round, when a correction was applied: option II takes it out again."""
    for round in range(2):
        gradients = [local_gradient(federation, k, round) for k in range(3)]
        play_round(federation, round=round)
        for k in range(3):
            assert torch.allclose(federation.engine.states[k][CONTROL], gradients[k], rtol=1e-2, atol=1e-5)
        mean = torch.stack(gradients).mean(dim=0)
        assert torch.allclose(federation.progress.tensors[CONTROL], mean, rtol=1e-2, atol=1e-5)


def test_the_correction_replaces_a_stale_drift(federation):
    """Second round, one step: every client moves by its gradient - c_k + c."""
    play_round(federation)
    own = [federation.engine.states[k][CONTROL] for k in range(3)]
    server = federation.progress.tensors[CONTROL]
    gradients = [local_gradient(federation, k, 1) for k in range(3)]
    lr = 0.001 + (0.05 - 0.001) * 0.5
    before = federation.progress.weights.clone()
    trained = federation.engine.model.num_trainable
    expected = before[:trained] - lr * torch.stack(gradients).mean(dim=0)
    client = federation.engine.client(1)
    push = federation.method.penalties[0].start(client, {"weights": before, CONTROL: server})
    gradient = gradients[1].clone()
    push(before[:trained], gradient)
    assert torch.allclose(gradient, gradients[1] - own[1] + server)
    play_round(federation, round=1)
    # Corrections of all clients cancel, so the average still follows the mean gradient.
    assert torch.allclose(federation.progress.weights[:trained], expected, atol=1e-6)


def test_the_server_counts_clients_that_stayed_away(federation):
    """One of three takes part: c moves by a third of its change."""
    _, replies = play_round(federation, clients=[1])
    assert torch.allclose(federation.progress.tensors[CONTROL], replies[1][CHANGE] / 3)
    assert sorted(federation.engine.states) == [1]
    assert torch.equal(federation.engine.states[1][CONTROL], replies[1][CHANGE])


def test_new_rows_start_at_zero_on_both_sides(federation):
    play_round(federation)
    engine, progress = federation.engine, federation.progress
    server, own = progress.tensors[CONTROL], engine.states[0][CONTROL]
    federation._begin(1)
    sent = federation._requests([0], 0)[0][CONTROL]
    assert torch.equal(sent, engine.model.widened(server, 2))
    client = engine.client(0)
    push = federation.method.penalties[0].start(client, {"weights": progress.weights, CONTROL: sent})
    gradient = torch.zeros_like(engine.model.weights)
    push(engine.model.weights, gradient)
    assert torch.allclose(gradient, engine.model.widened(server - own, 2))
    assert int((engine.model.widened(torch.ones_like(own), 2) == 0).sum()) == 2 * (16 + 1)
    play_round(federation, clients=[0])
    assert engine.states[0][f"{CONTROL}.classes"] == 4
    assert engine.states[1][f"{CONTROL}.classes"] == 2, "a client that stayed away keeps the old layout"


@pytest.mark.parametrize("participation", [1.0, 2], ids=["all", "two of three"])
def test_the_server_keeps_the_mean_of_all_clients(participation, tmp_path):
    """Over tasks, growth and absence; clients that were never asked count as zero."""
    run = run_toy(tmp_path, "fedcbdr+scaffold", scenario={"participation": participation})
    engine = run.experiment.engine
    total = torch.zeros(engine.model.num_trainable)
    for state in engine.states.values():
        if CONTROL in state:
            total += engine.model.widened(state[CONTROL], state[f"{CONTROL}.classes"])
    assert torch.allclose(run.progress.tensors[CONTROL], total / 3, rtol=1e-3, atol=1e-5)
    assert total.abs().max() > 0


def test_a_single_client_does_not_drift(tmp_path):
    changes = {"scenario": {"clients": 1}}
    ours = run_toy(tmp_path, "finetune+scaffold", **changes)
    assert ours.weights == run_toy(tmp_path, "finetune", **changes).weights


@pytest.mark.slow
def test_control_variates_stay_bounded_with_momentum(tmp_path):
    """Dividing by the number of steps alone lets them grow without end."""
    train = {"rounds": 10, "local_epochs": 4, "momentum": 0.9}
    run = run_toy(tmp_path, "finetune+scaffold", train=train, scenario={"tasks": 2})
    assert run.progress.tensors[CONTROL].abs().max() < 5
    assert torch.isfinite(run.progress.weights).all()


def test_one_control_variate_goes_each_way_per_client_and_round(tmp_path):
    """Three clients, two rounds in each of three tasks."""
    run = run_toy(tmp_path, "finetune+scaffold")
    expected = 3 * 2 * sum(trainable_bytes("finetune"))
    assert extra_traffic(run.result) == {"down/train/control": expected, "up/train/control_change": expected}


def test_it_works_with_a_head_that_does_not_grow(tmp_path):
    run = run_toy(tmp_path, "fedcbdr+feat+scaffold")
    assert len(run.progress.tensors[CONTROL]) == run.experiment.engine.model.num_trainable
    assert torch.isfinite(run.progress.weights).all()
