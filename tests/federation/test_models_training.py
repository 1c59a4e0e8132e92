import pytest
import torch

from fedfeat.algorithm.method import linear_head
from fedfeat.algorithm.settings import TrainSettings, learning_rate
from fedfeat.federation.average import average, mean_losses
from fedfeat.federation.training import sgd
from fedfeat.models import FlatModel, ModelSettings, as_vector, build_network


def network():
    built = build_network(ModelSettings(width=4), (8, 8, 1), linear_head, seed=0, num_classes=10)
    built.head.grow(3, 0)
    return built


def loss_of(net, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(12, 1, 8, 8, generator=generator)
    return torch.nn.functional.cross_entropy(net(x).logits, torch.arange(12) % 3)


class Descent:
    """Our SGD on the gradient that ``backward`` leaves in a flat model."""

    def __init__(self, model, **settings):
        self.model, self.settings, self.velocity = model, settings, torch.zeros_like(model.weights)

    def step(self):
        sgd(self.model.weights, self.model.gradient, self.velocity, **self.settings)
        self.model.gradient.zero_()


RATES = [0.1, torch.tensor(0.1)]  # engines that capture their steps keep the learning rate on the device


@pytest.mark.parametrize("lr", RATES, ids=["number", "tensor"])
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.9, 1e-5), (0.9, 0.1), (0.0, 0.0), (0.0, 0.1), (0.5, 5e-4)])
def test_sgd_equals_the_reference_over_several_steps(momentum, weight_decay, lr):
    plain, model = network(), FlatModel(network())
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    ours = Descent(model, lr=lr, momentum=momentum, weight_decay=weight_decay)
    start = model.weights.clone()
    running = model.vector[model.num_trainable :].clone()
    for step in range(6):
        reference.zero_grad()
        loss_of(plain, step).backward()
        reference.step()
        loss_of(model.network, step).backward()
        running = model.vector[model.num_trainable :].clone()
        ours.step()
        expected = as_vector(p.detach() for p in plain.parameters())
        assert torch.allclose(model.weights, expected, rtol=1e-4, atol=1e-5)
    assert (model.weights - start).abs().max() > 1e-2
    assert torch.equal(model.vector[model.num_trainable :], running), "running statistics are not SGD's"


@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_clipping_equals_the_reference(clip):
    plain, model = network(), FlatModel(network())
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    ours = Descent(model, lr=0.1, momentum=0.9, weight_decay=0.1, clip=clip)
    for step in range(3):
        reference.zero_grad()
        loss_of(plain, step).backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        assert (norm > clip) == (clip < 1)
        reference.step()
        loss_of(model.network, step).backward()
        ours.step()
    expected = as_vector(p.detach() for p in plain.parameters())
    assert torch.allclose(model.weights, expected, rtol=1e-4, atol=1e-5)


def test_rows_of_a_stack_descend_like_single_vectors():
    generator = torch.Generator().manual_seed(0)
    weights, gradient, velocity = torch.randn(3, 2, 50, generator=generator)
    singles = [[t[row].clone() for t in (weights, gradient, velocity)] for row in range(2)]
    settings = {"lr": torch.tensor(0.1), "momentum": 0.9, "weight_decay": 0.1, "clip": 0.5}
    sgd(weights, gradient, velocity, **settings)
    for row, (single, *rest) in enumerate(singles):
        sgd(single, *rest, **settings)
        assert torch.allclose(weights[row], single, rtol=1e-6)
        assert torch.allclose(velocity[row], rest[1], rtol=1e-6)


@pytest.mark.parametrize(("round", "rate"), [(0, 0.04), (1, 0.0399903779), (2, 0.0399615212)])
def test_cosine_schedule_has_the_published_values(round, rate):
    settings = TrainSettings(rounds=100, lr=0.04, lr_min=1e-3)
    assert learning_rate(settings, round) == pytest.approx(rate, abs=1e-10)


def test_cosine_schedule_is_halfway_in_the_middle_and_ends_in_its_minimum():
    settings = TrainSettings(rounds=100, lr=0.04, lr_min=1e-3)
    assert learning_rate(settings, 50) == pytest.approx(0.0205)
    assert learning_rate(settings, 100) == pytest.approx(1e-3)
    rates = [learning_rate(settings, r) for r in range(101)]
    assert rates == sorted(rates, reverse=True)


def test_cosine_schedule_equals_the_reference_scheduler():
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.05)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=7, eta_min=0.002)
    settings = TrainSettings(rounds=7, lr=0.05, lr_min=0.002)
    for round in range(7):
        assert learning_rate(settings, round) == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-12)
        optimiser.step()
        reference.step()


def test_a_constant_schedule_stays():
    settings = TrainSettings(schedule="constant", lr=0.3)
    assert {learning_rate(settings, r) for r in (0, 50, 99)} == {0.3}


def reply(samples, *values, **more):
    return {"samples": samples, "weights": torch.tensor(values), **more}


REPLIES = [(0, reply(10, 1.0, 4.0)), (1, reply(30, 5.0, -4.0))]


@pytest.mark.parametrize(("how", "mean"), [("uniform", [3.0, 0.0]), ("samples", [4.0, -2.0])])
def test_average_of_two_clients(how, mean):
    result = average(iter(REPLIES), how)
    assert torch.allclose(result.weights, torch.tensor(mean))
    assert result.samples == 40


@pytest.mark.parametrize("how", ["uniform", "samples"])
def test_the_average_of_one_client_is_its_model(how):
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    result = average([(3, {"samples": 7, "weights": vector})], how)
    assert torch.allclose(result.weights, vector, rtol=1e-6, atol=0)
    if how == "uniform":
        assert torch.equal(result.weights, vector)


@pytest.mark.parametrize("how", ["uniform", "samples"])
def test_clients_without_samples_do_not_count(how):
    with_empty = [REPLIES[0], (1, {"samples": 0}), (2, {"samples": 0}), (3, REPLIES[1][1])]
    result = average(with_empty, how)
    assert torch.equal(result.weights, average(REPLIES, how).weights)
    assert set(result.replies) == {0, 3}


@pytest.mark.parametrize("replies", [[], [(0, {"samples": 0}), (1, {"samples": 0})]])
def test_without_any_sample_there_is_no_average(replies):
    result = average(replies, "uniform")
    assert result.weights is None
    assert result.samples == 0
    assert result.replies == {}


def test_replies_are_read_one_at_a_time_and_may_share_one_resident_vector():
    resident = torch.zeros(2)

    def replies():
        for client, value in enumerate((2.0, 4.0, 9.0)):
            resident.fill_(value)
            yield client, {"samples": 1, "weights": resident}

    result = average(replies(), "uniform")
    assert torch.equal(result.weights, torch.full((2,), 5.0))
    assert resident[0] == 9.0


def test_running_statistics_are_averaged_with_the_weights():
    replies = []
    for client in range(2):
        model = FlatModel(network())
        loss_of(model.network.train(), client)
        replies.append((client, {"samples": 5, "weights": model.vector}))
    mean = FlatModel(network())
    mean.load(average(replies, "uniform").weights)
    one, two = (model["weights"][mean.num_trainable :] for _, model in replies)
    assert not torch.equal(one, two)
    assert torch.allclose(mean.vector[mean.num_trainable :], (one + two) / 2)


def test_statistics_travel_on_without_the_weights():
    result = average([(6, reply(4, 1.0, prior_head=0.5))], "uniform")
    assert result.replies == {6: {"samples": 4, "prior_head": 0.5}}


def test_mean_losses_weigh_clients_by_their_samples():
    replies = [
        {"samples": 1, "loss.ce": 4.0, "loss.gsa": 1.0},
        {"samples": 3, "loss.ce": 0.0, "loss.gsa": 1.0},
    ]
    assert mean_losses(replies) == {"ce": pytest.approx(1.0), "gsa": pytest.approx(1.0)}
