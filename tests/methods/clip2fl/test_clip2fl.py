"""CLIP2FL in runs with a small teacher made here."""

import math
import types

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedfeat.algorithm.step import Known, Seen
from fedfeat.config.config import make_config
from fedfeat.core.errors import ConfigError
from fedfeat.federation.progress import Progress
from fedfeat.methods.clip2fl.clip2fl import CLIP2FLSettings, RetrainedClassifier, distillation
from fedfeat.methods.clip2fl.teacher_cache import TeacherCache, write_cache
from fedfeat.models import Outputs
from fedfeat.runs.contract.compare import final_weights
from fedfeat.runs.contract.hold import PROMISES, hold, keep
from fedfeat.runs.contract.trial import Trial
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset

METHOD = "fedcbdr+clip2fl"
WIDTH = 12  # of the teacher's space; the toy network's features have 16
QUICK = {"features_per_class": 4, "match_epochs": 3, "retrain_epochs": 2, "repeats": 2, "images_per_class": 5}

LEARNS = {"features_per_class": 20, "match_epochs": 40, "retrain_epochs": 40, "retrain_batch": 8}


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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


# In a run.


@pytest.mark.slow
def test_it_keeps_the_contract_of_all_methods(cache, tmp_path):
    path = cache.with_name("npz.safetensors")
    # Its teacher knows the images of the toy problem alone, not the digits in their domains.
    others = ("learns", "vectorised", "captured", "domains")
    for outcome in hold(Trial(METHOD, tmp_path / "quick", tables={"clip2fl": table(path)})):
        assert outcome.verdict == "kept" or outcome.promise.name in others, outcome
    keep(PROMISES["learns"], Trial(METHOD, tmp_path / "learns", tables={"clip2fl": table(path, **LEARNS)}))


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
    weights = [final_weights(tmp_path / name) for name in "ab"]
    assert weights[0] == weights[1]  # the server step leaves the global model alone
    assert "clip2fl departs from the published server step" in cheap.method.notes[-1]
    features, plain = draws(2, 16).float(), draws(2, 6, seed=1).float()
    known = Known({}, progress.tensors)
    found = RetrainedClassifier()(None, Outputs(features, plain), Seen(0, 0, 6), known)
    expected = F.linear(features, progress.tensors["clip2fl.weight"], progress.tensors["clip2fl.bias"])
    assert torch.equal(found, expected)
    assert RetrainedClassifier()(None, Outputs(features, plain), Seen(1, 6, 8), known) is plain
    assert RetrainedClassifier()(None, Outputs(features, plain), Seen(0, 0, 6), Known({}, {})) is plain


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
    import fedfeat.methods.clip2fl.clip2fl as module

    agreed = []

    def spy(logits, teacher, temperature):
        agreed.append((teacher.argmax(dim=1), teacher.abs().max()))
        return distillation(logits, teacher, temperature)

    labels = []
    loss = contract_loss(labels)
    monkeypatch.setattr(module, "distillation", spy)
    monkeypatch.setattr("fedfeat.methods.fedcbdr.fedcbdr.temperature_scaled_cross_entropy", loss)
    run(tmp_path / "run", cache, scenario={"tasks": 1})
    right = torch.cat([a == y for (a, _), y in zip(agreed, labels, strict=True)]).float().mean()
    assert right > 0.8  # as the teacher itself; shuffled targets would be right once in six
    assert 10 < max(scale for _, scale in agreed) <= 100.01


def contract_loss(labels):
    from fedfeat.algorithm.losses import temperature_scaled_cross_entropy

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
    from fedfeat.methods.clip2fl import teacher as module
    from fedfeat.methods.clip2fl.teacher_cache import read_cache

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
    assert final_weights(tmp_path / "cache") == final_weights(tmp_path / "live")
