from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.algorithm.step import Known, Seen, Step
from fedfeat.config.config import make_config
from fedfeat.core.rng import rng_at
from fedfeat.data.dataset import Augmentation
from fedfeat.geometry import egc_correct, ema, group_energies, weighted_mean
from fedfeat.methods.feat.correction import NUM_TAIL, PRIOR_HEAD, PRIOR_TAIL, EnergyCorrection, EnergyPrior
from fedfeat.methods.feat.settings import EGCSettings
from fedfeat.runs.experiment import Experiment

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)
CONVENTIONS = ["eq9", "decay"]


@PROPERTY
@given(
    value=st.floats(-10, 10),
    rho=st.floats(0.01, 1),
    count=st.integers(1, 30),
    how=st.sampled_from(CONVENTIONS),
)
def test_a_constant_is_a_fixed_point_of_the_moving_average(value, rho, count, how):
    assert ema([value] * count, rho, convention=how) == pytest.approx(value, abs=1e-9)


def test_published_convention_puts_rho_on_the_new_value():
    assert ema([1.0, 2.0, 4.0], 0.9) == pytest.approx(0.1 * (0.1 * 1 + 0.9 * 2) + 0.9 * 4)
    assert ema([1.0, 2.0, 4.0], 0.9, convention="decay") == pytest.approx(0.9 * (0.9 * 1 + 0.1 * 2) + 0.1 * 4)


@pytest.mark.parametrize(("convention", "count", "share"), [("eq9", 2, 0.99), ("decay", 5, 0.40951)])
def test_a_start_at_zero_leaves_the_known_bias(convention, count, share):
    assert ema([1.0] * count, 0.9, convention=convention, init="zero") == pytest.approx(share)


def test_a_moving_average_of_nothing_is_zero():
    assert ema([], 0.9) == 0.0


def test_clients_count_by_their_old_samples():
    assert weighted_mean([0.1, 0.4], [30, 10]) == pytest.approx(0.175)


def test_clients_without_old_samples_are_ignored_even_if_they_send_nonsense():
    assert weighted_mean([float("nan"), 0.4, float("inf")], [0, 10, 0]) == pytest.approx(0.4)


@pytest.mark.parametrize(("values", "weights"), [([], []), ([0.3, 0.2], [0, 0])])
def test_without_any_old_sample_there_is_no_mean(values, weights):
    assert weighted_mean(values, weights) is None


def reply(head, tail, count):
    return {PRIOR_HEAD: head, PRIOR_TAIL: tail, NUM_TAIL: count, "samples": 5}


def test_server_prior_is_the_mean_weighted_by_old_samples():
    numbers = EnergyPrior(EGCSettings()).reduce([reply(0.1, 0.5, 30), reply(0.9, 0.9, 0), reply(0.4, 0.1, 10)])
    assert numbers == {PRIOR_HEAD: pytest.approx(0.175), PRIOR_TAIL: pytest.approx(0.4)}


@pytest.mark.parametrize("replies", [[], [{"samples": 3}], [reply(0.0, 0.0, 0), reply(0.0, 0.0, 0)]])
def test_without_old_samples_the_server_keeps_its_earlier_numbers(replies):
    assert EnergyPrior(EGCSettings()).reduce(replies) == {}


@pytest.fixture(scope="module")
def client():
    """A client in its second task with ten exemplars of the first, on an ETF head."""
    engine = Experiment(
        make_config(
            {
                "method": "replay+feat",
                "data": {"name": "digits"},
                "scenario": {"clients": 2, "budget": 20},
                "model": {"width": 8},
                "train": {"batch": 4},
            }
        )
    ).engine
    engine.begin_task(0)
    first = engine.client(0)
    first.keep(first.samples[:10])
    engine.states[0] = first.state
    engine.begin_task(1)
    return engine.client(0)


def batch_energies(client):
    client.network.eval()
    with torch.no_grad():
        features = client.network.features(client.images.plain(client.exemplars))
        cosines = client.network.head.cosine(features)
    energies = group_energies(cosines, num_old=client.num_old)
    return [(energies.head[s], energies.tail[s]) for s in (slice(0, 4), slice(4, 8), slice(8, 10))]


def measure(client, **egc):
    return EnergyPrior(EGCSettings(**egc)).finish(client, {})


def test_client_prior_is_the_moving_average_over_batches_of_exemplars(client):
    means = [float(head.mean()) for head, _ in batch_energies(client)]
    sent = measure(client, prior_order="kept")
    assert sent[PRIOR_HEAD] == pytest.approx(0.1 * (0.1 * means[0] + 0.9 * means[1]) + 0.9 * means[2], rel=1e-5)
    assert sent[NUM_TAIL] == 10


def test_exact_prior_is_the_mean_over_all_exemplars_whatever_their_order(client):
    heads, tails = (torch.cat(parts) for parts in zip(*batch_energies(client), strict=True))
    sent = measure(client, prior="mean")
    assert sent[PRIOR_HEAD] == pytest.approx(float(heads.mean()), rel=1e-5)
    assert sent[PRIOR_TAIL] == pytest.approx(float(tails.mean()), rel=1e-5)
    kept = client.exemplars
    client.keep(kept.flip(0), instead=True)
    flipped = measure(client, prior="mean")
    moving = measure(client, prior_order="kept")
    client.keep(kept, instead=True)
    assert flipped[PRIOR_HEAD] == pytest.approx(sent[PRIOR_HEAD], rel=1e-5)
    assert moving[PRIOR_HEAD] != pytest.approx(measure(client, prior_order="kept")[PRIOR_HEAD], rel=1e-5)


def test_a_shuffled_prior_is_the_moving_average_over_batches_in_the_order_of_its_round(client):
    energies = torch.cat([head for head, _ in batch_energies(client)])
    sent = {}
    for number in range(40):
        order = rng_at(client.seed, "prior-order", client.task, number, client.id).permutation(10)
        means = [float(part.mean()) for part in torch.split(energies[order.tolist()], 4)]
        sent[number] = measure(replace(client, round=number))[PRIOR_HEAD]
        assert sent[number] == pytest.approx(ema(means, 0.9), rel=1e-5)
    assert len(set(sent.values())) > 10
    # Over rounds it lies around the mean, which the order kept does not.
    assert sum(sent.values()) / 40 == pytest.approx(float(energies.mean()), rel=0.1)


def test_a_client_without_exemplars_reports_zero_old_samples(client):
    kept = client.exemplars
    client.keep(kept[:0], instead=True)
    sent = measure(client)
    client.keep(kept, instead=True)
    assert sent[NUM_TAIL] == 0


def test_exemplars_are_augmented_only_on_request(client, monkeypatch):
    plain = measure(client, prior_transform="test")[PRIOR_HEAD]
    monkeypatch.setattr(client.images, "augmentation", Augmentation(crop_padding=2, flip=True))
    assert measure(client, prior_transform="test")[PRIOR_HEAD] == plain
    assert measure(client, prior_transform="train")[PRIOR_HEAD] != pytest.approx(plain, rel=1e-3)


def online(client, batches, **egc):
    """Feed features of training batches to the online variant."""
    prior = EnergyPrior(EGCSettings(prior_source="online", **egc))
    buffers = prior.start(client, {})
    for features, labels in batches:
        counts = client.num_old, client.num_classes, client.num_classes
        step = Step(features, features, labels, *counts, {}, (), client.network)
        prior.update(client.network, step, buffers)
    return prior.finish(client, buffers)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("init", ["first", "zero"])
@pytest.mark.parametrize("prior", ["ema", "mean"])
def test_online_prior_averages_old_samples_of_training_batches(client, convention, init, prior):
    generator = torch.Generator().manual_seed(0)
    labels = [torch.tensor(x) for x in ([2, 3, 2], [0, 2, 1], [1, 1, 3], [2, 2, 2], [3, 0, 3])]
    batches = [(torch.randn(3, client.network.head.dim, generator=generator), y) for y in labels]
    heads = []
    for features, y in batches:
        energies = group_energies(client.network.head.cosine(features), num_old=2)
        heads.append(energies.head[y < 2].tolist())
    heads = [h for h in heads if h]
    means = [sum(h) / len(h) for h in heads]
    exact = sum(map(sum, heads)) / sum(map(len, heads))
    expected = exact if prior == "mean" else ema(means, 0.7, convention=convention, init=init)
    sent = online(client, batches, rho=0.7, ema_convention=convention, ema_init=init, prior=prior)
    assert sent[PRIOR_HEAD] == pytest.approx(expected, rel=1e-5)
    assert sent[NUM_TAIL] == 5


def test_predictions_are_corrected_with_the_global_prior(client):
    outputs = _outputs(client)
    cosines = client.network.head.cosine(outputs.features)
    predict = EnergyCorrection(EGCSettings())
    corrected = predict(client.network, outputs, Seen(1, 2, 4), Known({PRIOR_HEAD: 0.01}, {}))
    assert torch.equal(corrected, egc_correct(cosines, num_old=2, prior_head=0.01))
    assert not torch.allclose(corrected, cosines)


@pytest.mark.parametrize(
    ("seen", "numbers"),
    [(Seen(1, 2, 4), {}), (Seen(0, 0, 4), {PRIOR_HEAD: 0.0})],
    ids=["no prior", "first task"],
)
def test_predictions_stay_plain_without_a_prior_and_in_the_first_task(client, seen, numbers):
    outputs = _outputs(client)
    plain = EnergyCorrection(EGCSettings())(client.network, outputs, seen, Known(numbers, {}))
    assert torch.equal(plain, client.network.head.cosine(outputs.features))


def _outputs(client):
    client.network.eval()
    with torch.no_grad():
        return client.network(client.images.plain(client.samples[:20]))


def test_a_loader_pass_counts_the_old_images_of_mixed_batches(client):
    """Every batch of the shuffled local set gives the mean over its old images, if it has any."""
    rounds = replace(client, round=3)
    local = torch.cat([client.samples, client.exemplars])
    order = rng_at(client.seed, "prior-order", client.task, 3, client.id).permutation(len(local))
    client.network.eval()
    means, count = [], 0
    for batch in torch.split(local[order.tolist()], 4):
        old = batch[client.labels(batch) < client.num_old]
        if len(old):
            with torch.no_grad():
                cosines = client.network.head.cosine(client.network.features(client.images.plain(old)))
            means.append(float(group_energies(cosines, num_old=client.num_old).head.mean()))
            count += len(old)
    sent = measure(rounds, prior_source="loader", rho=0.8, ema_init="zero")
    assert sent[NUM_TAIL] == count == 10
    assert sent[PRIOR_HEAD] == pytest.approx(ema(means, 0.8, init="zero"), rel=1e-4)
    exact = measure(rounds, prior_source="loader", prior="mean")
    assert exact[PRIOR_HEAD] == pytest.approx(measure(client, prior="mean")[PRIOR_HEAD], rel=1e-4)
