"""CLIP2FL against values worked out by hand, and in runs with a small teacher made here."""

import math
import types

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import contract.test_contract as contract
from fedfeat.config import make_config
from fedfeat.errors import ConfigError
from fedfeat.experiment import Experiment
from fedfeat.federation.runfolder import RunFolder
from fedfeat.federation.server import Progress
from fedfeat.methods.clip2fl import CLIP2FLSettings, distillation, retrained_logits
from fedfeat.methods.method import Known, Seen
from fedfeat.models import Outputs
from fedfeat.server_training import siamese
from fedfeat.server_training.class_gradients import (
    ClassGradients,
    LinearMap,
    class_gradients,
    fresh_linear,
    grouped_gradients,
    mean_gradients,
)
from fedfeat.server_training.federated_features import (
    FeatureSettings,
    grown_classifier,
    grown_features,
    match,
    matching_loss,
    prototype_term,
    retrain,
    row_distance,
)
from fedfeat.teacher import TeacherCache, write_cache
from toy import toy_config, toy_dataset

METHOD = "fedcbdr+clip2fl"
WIDTH = 12  # of the teacher's space; the toy network's features have 16
QUICK = {"features_per_class": 4, "match_epochs": 3, "retrain_epochs": 2, "repeats": 2, "images_per_class": 5}

LEARNS = {"features_per_class": 20, "match_epochs": 40, "retrain_epochs": 40, "retrain_batch": 8}


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classifier(classes=3, dim=5, seed=9):
    return LinearMap(draws(classes, dim, seed=seed), draws(classes, seed=seed + 1))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A teacher that can see: a random projection of pixels; a class's text is the mean of its images."""
    dataset = toy_dataset()
    pixels = torch.from_numpy(dataset.train_images.reshape(len(dataset.train_images), -1)).float() / 255
    features = F.normalize((pixels - pixels.mean(dim=0)) @ draws(64, WIDTH).float())
    labels = torch.from_numpy(dataset.train_labels)
    text = torch.stack([features[labels == c].mean(dim=0) for c in range(6)])
    assert ((features @ F.normalize(text).T).argmax(1) == labels).float().mean() > 0.8
    folder = tmp_path_factory.mktemp("teacher")
    numbers = tuple(map(str, range(6)))  # what the toy's classes are called when they come from a file
    write_cache(folder / "toy.safetensors", TeacherCache(features, text, dataset.class_names, labels, "pixels"))
    write_cache(folder / "npz.safetensors", TeacherCache(features, text, numbers, labels, "pixels"))
    return folder / "toy.safetensors"


def table(cache, **changes):
    return {**QUICK, "teacher": {"backend": "cache", "path": str(cache)}, **changes}


def run(tmp_path, cache, *, method=METHOD, clip2fl=None, **changes):
    config = toy_config(method, clip2fl=table(cache, **(clip2fl or {})), **changes)
    experiment = Experiment(config, toy_dataset())
    progress = Progress()
    result = experiment.run(RunFolder.create(tmp_path, experiment.config, {}), progress, ())
    return experiment, progress, result


# Distillation.


def test_distillation_by_hand():
    logits, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[3 * math.log(3.0), 0.0]])
    expected = 9 * (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5))
    assert float(distillation(logits, teacher, 3.0)) == pytest.approx(expected, rel=1e-5)


def test_distillation_is_averaged_over_the_batch_and_zero_for_shifted_logits():
    logits = draws(4, 3)
    assert abs(float(distillation(logits + 7, logits, 3.0))) < 1e-12
    other = draws(4, 3, seed=1)
    one_by_one = [distillation(logits[i : i + 1], other[i : i + 1], 3.0) for i in range(4)]
    torch.testing.assert_close(distillation(logits, other, 3.0), torch.stack(one_by_one).mean())


def test_distillation_survives_a_sure_teacher():
    logits = torch.zeros(1, 2, requires_grad=True)
    distillation(logits, torch.tensor([[1000.0, -1000.0]]), 3.0).backward()
    assert torch.isfinite(logits.grad).all()


# Gradients of classes.


def test_closed_form_gradients_are_those_of_autograd():
    features, labels = draws(9, 5), torch.tensor([0, 2, 2, 0, 2, 2, 2, 0, 0])
    linear = LinearMap(*(t.requires_grad_() for t in classifier()))
    classes = torch.tensor([0, 2])
    made = class_gradients(features, labels, classes, linear)
    for row, c in enumerate(classes):
        rows = features[labels == c]
        loss = F.cross_entropy(linear(rows), torch.full((len(rows),), int(c)))
        weight, bias = torch.autograd.grad(loss, list(linear))
        torch.testing.assert_close(made.weight[row], weight, atol=1e-12, rtol=0)
        torch.testing.assert_close(made.bias[row], bias, atol=1e-12, rtol=0)
    single = class_gradients(features.float(), labels, classes, LinearMap(*(t.detach().float() for t in linear)))
    torch.testing.assert_close(single.weight, made.weight.detach().float(), atol=1e-6, rtol=0)


def test_gradients_are_averaged_over_the_clients_that_own_the_class():
    def sent(ids, value):
        count = len(ids)
        return torch.tensor(ids).int(), ClassGradients(torch.full((count, 2, 3), value), torch.full((count, 2), value))

    classes, mean = mean_gradients([sent([0, 4], 1.0), sent([4], 3.0), sent([2], 5.0)])
    assert classes.tolist() == [0, 2, 4]
    assert mean.bias[:, 0].tolist() == [1.0, 5.0, 2.0]
    assert mean.weight[:, 1, 2].tolist() == [1.0, 5.0, 2.0]


# Federated features.


def test_matching_loss_is_zero_when_features_reproduce_the_gradient():
    linear, features, classes = classifier(), draws(3, 4, 5), torch.arange(3)
    target = grouped_gradients(features, classes, linear)
    assert float(matching_loss(features, classes, target, linear)) < 1e-3  # the guard in the denominator
    # Twice the gradient has the same directions.
    double = ClassGradients(2 * target.weight, 2 * target.bias)
    assert float(matching_loss(features, classes, double, linear)) < 1e-3
    opposite = ClassGradients(-target.weight, -target.bias)
    rows = 3 * (3 + 1)  # per class a row per output, and the bias
    assert float(matching_loss(features, classes, opposite, linear)) == pytest.approx(2 * rows, abs=1e-3)


def test_row_distance_by_hand_and_for_zero_rows():
    ours = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], requires_grad=True)
    theirs = torch.tensor([[0.0, 2.0], [3.0, 3.0], [1.0, 0.0]])
    value = row_distance(ours, theirs)
    assert value.item() == pytest.approx(1 + 0 + 1, abs=1e-5)
    value.backward()
    assert torch.isfinite(ours.grad).all()


def test_the_prototype_term_is_cross_entropy_over_text_features():
    features, text = draws(3, 2, 5), F.normalize(draws(3, 5, seed=1))
    rows = [F.cross_entropy(v @ text.T / 0.1, torch.tensor(c)) for c in range(3) for v in features[c]]
    torch.testing.assert_close(prototype_term(features, text, 0.1), torch.stack(rows).mean())


def test_the_released_form_of_the_prototype_term_is_a_constant_away():
    """Each text vector 100 times with one of them masked, as in the released code: log(100) up to the mask."""
    features, text = 0.1 * draws(4, 100, 5), F.normalize(draws(4, 5, seed=1))
    flat, labels = features.flatten(0, 1), torch.arange(4).repeat_interleave(100)
    repeated = (flat @ text.T / 0.1).repeat_interleave(100, dim=1)
    own = torch.eye(400, dtype=torch.bool)
    denominator = repeated.masked_fill(own, -torch.inf).logsumexp(dim=1)
    released = (denominator - (flat @ text.T / 0.1)[torch.arange(400), labels]).mean()
    gap = float(released - prototype_term(features, text, 0.1))
    assert gap == pytest.approx(math.log(100), abs=0.01)
    assert gap < math.log(100)


def settings(**changes):
    return FeatureSettings(**{"features_per_class": 4, "match_epochs": 60, **changes})


def test_matching_brings_the_gradients_together():
    linear, classes = LinearMap(*(t.float() for t in classifier())), torch.arange(3)
    target = grouped_gradients(3 * draws(3, 8, 5, seed=4).float(), classes, linear)
    start = draws(3, 4, 5, seed=5).float()
    text = F.normalize(draws(3, 5, seed=6)).float()
    before = matching_loss(start, classes, target, linear)
    moved, bridge, reported = match(start, classes, target, linear, text, None, settings())
    assert bridge is None
    assert matching_loss(moved, classes, target, linear) < 0.5 * before
    assert reported < before
    assert not moved.requires_grad


def test_a_class_without_a_gradient_feels_the_text_alone():
    linear, classes = LinearMap(*(t.float() for t in classifier())), torch.tensor([0, 2])
    target = grouped_gradients(draws(2, 8, 5, seed=4).float(), classes, linear)
    start, text = draws(3, 4, 5, seed=5).float(), F.normalize(draws(3, 5, seed=6)).float()
    alone = match(start, classes, target, linear, text, None, settings(match_epochs=1, eta=0.0))[0]
    assert torch.equal(alone[1], start[1])
    assert not torch.equal(alone[0], start[0])
    pulled = match(start, classes, target, linear, text, None, settings(match_epochs=1, eta=1.0))[0]
    leaf = start.clone().requires_grad_()
    prototype_term(leaf, text, 0.1).backward()
    torch.testing.assert_close(pulled[1], start[1] - 0.1 * leaf.grad[1])


def test_a_bridge_joins_different_widths():
    linear, classes = LinearMap(*(t.float() for t in classifier())), torch.arange(3)
    target = grouped_gradients(draws(3, 8, 5, seed=4).float(), classes, linear)
    text = F.normalize(draws(3, 7, seed=6)).float()
    start = fresh_linear(7, 5, seed=0)
    features, bridge, _ = match(draws(3, 4, 5).float(), classes, target, linear, text, start, settings())
    assert features.shape == (3, 4, 5)
    assert bridge.weight.shape == (7, 5)
    assert not torch.equal(bridge.weight, start.weight)


def test_retraining_is_the_sgd_of_a_linear_layer():
    features = draws(3, 4, 5).float()
    options = settings(retrain_epochs=2, retrain_batch=5, retrain_lr=0.3)
    found = retrain(features, options, np.random.default_rng(1))
    rng = np.random.default_rng(1)
    layer = torch.nn.Linear(5, 3)
    layer.weight.data, layer.bias.data = fresh_linear(3, 5, int(rng.integers(2**63)))
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.3)
    labels = torch.arange(3).repeat_interleave(4)
    for _ in range(2):
        for batch in torch.from_numpy(rng.permutation(12)).split(5):
            optimiser.zero_grad()
            F.cross_entropy(layer(features.flatten(0, 1)[batch]), labels[batch]).backward()
            optimiser.step()
    torch.testing.assert_close(found.weight, layer.weight.detach())
    torch.testing.assert_close(found.bias, layer.bias.detach())


def test_growth_keeps_old_features_and_rows():
    first = grown_features(None, 2, 4, 5, seed=3)
    second = grown_features(first + 1, 5, 4, 5, seed=3)
    assert torch.equal(second[:2], first + 1)
    assert torch.equal(second[2:], grown_features(None, 5, 4, 5, seed=3)[2:])
    assert grown_features(second, 5, 4, 5, seed=3) is second
    small = grown_classifier(None, 2, 5, seed=1)
    large = grown_classifier(small, 6, 5, seed=2)
    assert torch.equal(large.weight[:2], small.weight)
    assert torch.equal(large.bias[:2], small.bias)
    assert large.weight.shape == (6, 5)
    assert large.weight.abs().max() <= 5**-0.5


# Augmentation behind gradients.


@pytest.mark.parametrize("strategy", ["colour", "crop", "cutout", "flip", "scale", "rotate"])
@pytest.mark.parametrize("shape", [(5, 3, 8, 8), (1, 1, 8, 6)])
def test_each_augmentation_keeps_the_shape_and_repeats(strategy, shape):
    images = draws(*shape).float()
    function = getattr(siamese, strategy)
    once, again = (function(images, np.random.default_rng(2)) for _ in range(2))
    assert once.shape == images.shape
    assert torch.equal(once, again)
    assert torch.isfinite(once).all()


def test_crop_moves_by_at_most_an_eighth():
    images = torch.zeros(64, 1, 16, 16)
    images[:, 0, 8, 8] = 1
    moved = siamese.crop(images, np.random.default_rng(0))
    places = moved.flatten(1).argmax(dim=1)
    rows, columns = places // 16, places % 16
    assert set(rows.tolist()) == set(columns.tolist()) == {6, 7, 8, 9, 10}
    assert (moved.sum(dim=(1, 2, 3)) == 1).all()


def test_cutout_blanks_at_most_a_quarter():
    blank = (siamese.cutout(torch.ones(64, 2, 8, 8), np.random.default_rng(0)) == 0).float().mean(dim=(1, 2, 3))
    assert blank.max() == 0.25
    assert blank.min() < 0.25


def test_a_turn_there_and_back_of_a_symmetric_image():
    disc = torch.zeros(1, 1, 9, 9)
    disc[..., 4, 4] = 1
    turned = siamese.rotate(disc, np.random.default_rng(0))
    assert turned[0, 0, 4, 4] == pytest.approx(1)


# In a run.


@pytest.mark.parametrize(
    "check",
    [value for name, value in sorted(vars(contract).items()) if name.startswith("test_")],
    ids=lambda c: c.__name__,
)
def test_it_keeps_the_contract_of_all_methods(check, cache, tmp_path, monkeypatch):
    def config(method, **changes):
        path = cache.with_name("npz.safetensors") if "data" in changes else cache
        return toy_config(method, clip2fl=table(path, **LEARNS) if "train" in changes else table(path), **changes)

    monkeypatch.setattr(contract, "toy_config", config)
    check(METHOD, tmp_path)


def test_traffic_is_that_of_the_formulas(cache, tmp_path):
    experiment, _, result = run(tmp_path / "run", cache, scenario={"tasks": 1})
    dim, classes, rounds = experiment.engine.network.backbone.feature_dim, 6, 2
    labels = toy_dataset().train_labels
    held = sum(len(set(labels[experiment.scenario.samples(0, k)].tolist())) for k in range(3)) * rounds
    traffic = result["traffic"]
    gradients = traffic["up/train/clip2fl.weight_gradients"] + traffic["up/train/clip2fl.bias_gradients"]
    assert gradients == 4 * held * (classes * dim + classes)
    assert traffic["up/train/clip2fl.classes"] == 4 * held
    down = traffic["down/train/clip2fl.weight"] + traffic["down/train/clip2fl.bias"]
    assert down == 4 * rounds * 3 * (classes * dim + classes)


def test_the_retrained_classifier_predicts_and_never_trains(cache, tmp_path):
    _, progress, _ = run(tmp_path / "a", cache, scenario={"tasks": 1})
    cheap, _, _ = run(
        tmp_path / "b", cache, scenario={"tasks": 1}, clip2fl={"server_last_rounds": 1, "match_epochs": 1}
    )
    weights = [contract.final_weights(tmp_path / name) for name in "ab"]
    assert weights[0] == weights[1]  # the server step leaves the global model alone
    assert "clip2fl departs from the published server step" in cheap.method.notes[-1]
    features, plain = draws(2, 16).float(), draws(2, 6, seed=1).float()
    known = Known({}, progress.tensors)
    found = retrained_logits(None, Outputs(features, plain), Seen(0, 0, 6), known)
    expected = F.linear(features, progress.tensors["clip2fl.weight"], progress.tensors["clip2fl.bias"])
    assert torch.equal(found, expected)
    assert retrained_logits(None, Outputs(features, plain), Seen(1, 6, 8), known) is plain
    assert retrained_logits(None, Outputs(features, plain), Seen(0, 0, 6), Known({}, {})) is plain


def test_rounds_without_a_server_step_send_nothing(cache, tmp_path):
    _, _, all_rounds = run(tmp_path / "all", cache, train={"rounds": 4})
    _, _, last = run(tmp_path / "last", cache, train={"rounds": 4}, clip2fl={"server_last_rounds": 1})
    _, _, second = run(tmp_path / "second", cache, train={"rounds": 4}, clip2fl={"server_every": 2})
    sizes = [r["traffic"]["up/train/clip2fl.weight_gradients"] for r in (all_rounds, second, last)]
    assert sizes[0] == 2 * sizes[1] == 4 * sizes[2]


def test_the_last_round_of_a_task_always_has_a_server_step():
    for rounds in range(1, 12):
        for every in range(1, 6):
            options = CLIP2FLSettings(server_every=every)
            active = [r for r in range(rounds) if options.is_active(r, rounds)]
            assert active[-1] == rounds - 1
            assert len(active) == math.ceil(rounds / every)
    assert [r for r in range(9) if CLIP2FLSettings(server_every=2, server_last_rounds=5).is_active(r, 9)] == [4, 6, 8]


def test_the_teacher_sees_the_batch_that_is_trained_on(cache, tmp_path, monkeypatch):
    """The distilled target of every step is the teacher's prediction for the samples of that step."""
    import fedfeat.methods.clip2fl as module

    agreed = []

    def spy(logits, teacher, temperature):
        agreed.append((teacher.argmax(dim=1), teacher.abs().max()))
        return distillation(logits, teacher, temperature)

    labels = []
    loss = contract_loss(labels)
    monkeypatch.setattr(module, "distillation", spy)
    monkeypatch.setattr("fedfeat.methods.fedcbdr.temperature_scaled_cross_entropy", loss)
    run(tmp_path / "run", cache, scenario={"tasks": 1})
    right = torch.cat([a == y for (a, _), y in zip(agreed, labels, strict=True)]).float().mean()
    assert right > 0.8  # as the teacher itself; shuffled targets would be right once in six
    assert 10 < max(scale for _, scale in agreed) <= 100.01


def contract_loss(labels):
    from fedfeat.methods.losses import temperature_scaled_cross_entropy

    def noting(logits, y, num_old, **options):
        labels.append(y)
        return temperature_scaled_cross_entropy(logits, y, num_old, **options)

    return noting


@pytest.mark.parametrize("augmentation", ["siamese", "run", "none"])
def test_every_augmentation_of_gradients_runs(augmentation, cache, tmp_path):
    _, progress, result = run(tmp_path / "run", cache, clip2fl={"augmentation": augmentation})
    assert progress.tensors["clip2fl.features"].shape == (6, 4, 16)
    assert progress.tensors["clip2fl.bridge_weight"].shape == (WIDTH, 16)
    assert np.isfinite(result["final_accuracy"])


def test_a_teacher_of_the_networks_width_needs_no_bridge(tmp_path):
    dataset = toy_dataset()
    cached = TeacherCache(
        draws(len(dataset.train_labels), 16),
        draws(6, 16),
        dataset.class_names,
        torch.from_numpy(dataset.train_labels),
        "x",
    )
    write_cache(tmp_path / "wide.safetensors", cached)
    experiment, progress, _ = run(tmp_path / "run", tmp_path / "wide.safetensors")
    assert "clip2fl.bridge_weight" not in progress.tensors
    assert "teacher=cache-x" in experiment.method.notes


def test_published_defaults():
    s = CLIP2FLSettings()
    assert (s.alpha, s.temperature, s.images_per_class, s.repeats, s.augmentation) == (1, 3, 32, 10, "siamese")
    assert (s.features_per_class, s.match_epochs, s.match_lr, s.eta, s.prototype_temperature) == (
        100,
        100,
        0.1,
        1e-3,
        0.1,
    )
    assert (s.retrain_epochs, s.retrain_batch, s.retrain_lr) == (300, 32, 0.01)
    assert (s.server_every, s.server_last_rounds) == (1, None)


def test_without_a_teacher_it_stops_before_data_is_touched():
    with pytest.raises(ConfigError) as raised:
        make_config({"method": METHOD, "data": {"name": "npz", "path": "/no/such/file"}})
    message = str(raised.value)
    assert "clip2fl" in message
    assert "image and text towers" in message
    for way in ("cache", "open_clip", "transformers", "openai_clip"):
        assert f"backend = {way}" in message
    assert "\n" not in message


def test_other_heads_and_predictions_are_refused(cache):
    for method in ("fedcbdr+etf+clip2fl", "fedcbdr+feat+clip2fl"):
        with pytest.raises(ConfigError, match="re-trains a linear classifier"):
            make_config({"method": method, "clip2fl": table(cache)})


def test_a_live_teacher_runs_like_its_cache(cache, tmp_path, monkeypatch):
    """A model that encodes during the run gives the same weights as its features from a file."""
    from fedfeat.teacher import teacher as module
    from fedfeat.teacher.cache import read_cache

    stored, dataset = read_cache(cache), toy_dataset()
    by_pixels = {image.tobytes(): row for image, row in zip(dataset.train_images, stored.image_features, strict=True)}
    texts = dict(zip((f"a photo of a {n}" for n in dataset.class_names), stored.text_features, strict=True))
    tower = types.SimpleNamespace(
        text=lambda prompts: torch.stack([texts[p] for p in prompts]),
        images=lambda pixels: torch.stack([by_pixels[p.tobytes()] for p in pixels]),
    )
    monkeypatch.setattr(module, "require", lambda backend: None)
    monkeypatch.setattr(module, "load_tower", lambda *_: tower)
    run(tmp_path / "cache", cache)
    run(tmp_path / "live", cache, clip2fl={"teacher": {"backend": "transformers", "path": str(tmp_path)}})
    assert contract.final_weights(tmp_path / "cache") == contract.final_weights(tmp_path / "live")
