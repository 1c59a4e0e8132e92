from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedfeat.algorithm.step import Step
from fedfeat.core.errors import ConfigError
from fedfeat.data.cifar import CIFAR100_CLASSES
from fedfeat.methods.class_names import TextSettings
from fedfeat.methods.data_free.lander import LanderSettings, class_anchors, lander, loss_factors
from fedfeat.methods.data_free.lander_synthesis import LanderGenerationSettings
from fedfeat.methods.data_free.losses import bounding_loss
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset
from toy_runs import extra_traffic, run_toy, trainable_bytes


@pytest.mark.parametrize(
    ("num_old", "num_classes", "current", "previous"),
    [
        (3, 6, 0.424264, 0.565685),
        (6, 10, 0.358084, 0.800921),
        (20, 40, 0.347238, 1.242335),
        (40, 50, 0.271178, 1.681680),
        (80, 100, 0.263027, 2.029429),
        (90, 100, 0.247984, 2.152534),
    ],
)
def test_the_published_factors(num_old, num_classes, current, previous):
    assert loss_factors(num_old, num_classes) == pytest.approx((current, previous), abs=1e-6)


def test_the_first_task_has_no_past():
    assert loss_factors(0, 10) == (1.0, 0.0)


def test_the_defaults_are_the_published_ones():
    settings = LanderSettings()
    assert (settings.radius, settings.bound, settings.current, settings.previous) == (0.015, 5.0, 0.2, 0.4)
    assert (settings.temperature, settings.batch) == (2.0, 128)
    assert settings.generation == LanderGenerationSettings()
    assert [t.name for t in lander(settings).active_terms(0)] == ["ce", "bound"]
    assert [t.name for t in lander(settings).active_terms(1)] == ["ce", "bound", "kd", "map"]


@pytest.mark.parametrize("encoder", ["ngrams", "gaussian", "random_orthogonal"])
def test_anchors_have_the_scale_of_the_published_ones(encoder):
    anchors = class_anchors(TextSettings(encoder=encoder), CIFAR100_CLASSES)
    norms = torch.linalg.vector_norm(anchors, dim=1)
    distances = (anchors[:, None] - anchors[None]).square().mean(dim=2)
    different = ~torch.eye(100, dtype=torch.bool)
    assert anchors.shape == (100, 512)
    assert float(norms.mean()) == pytest.approx(9.67, abs=0.25)
    assert float(torch.linalg.vector_norm(anchors.mean(dim=0))) == pytest.approx(8.6, abs=0.3)
    assert float(distances[different].mean()) == pytest.approx(0.081, abs=0.012)
    # The ball of radius 0.015 around an anchor must not reach another class's anchor.
    assert float(distances[different].min()) > 0.015


def test_names_that_share_words_have_closer_anchors():
    oak, maple, rocket = class_anchors(TextSettings(), ("oak_tree", "maple_tree", "rocket"))
    assert F.mse_loss(oak, maple) < F.mse_loss(oak, rocket)


@pytest.mark.parametrize("encoder", ["ngrams", "gaussian", "random_orthogonal"])
def test_anchors_stay_when_classes_arrive(encoder):
    settings = TextSettings(encoder=encoder)
    early, late = class_anchors(settings, CIFAR100_CLASSES[:3]), class_anchors(settings, CIFAR100_CLASSES[:9])
    assert torch.allclose(early, late[:3], atol=1e-5)


@pytest.mark.parametrize(("length", "factor"), [(1.0, 9.67), (3.0, 1.0)])
def test_a_table_keeps_its_scale_unless_it_was_normalised(tmp_path, length, factor):
    rows = F.normalize(torch.randn(2, 6, generator=torch.Generator().manual_seed(0)), dim=1) * length
    np.save(tmp_path / "table.npy", rows.numpy())
    (tmp_path / "table.json").write_text(json.dumps(["a", "b"]))
    anchors = class_anchors(TextSettings(encoder="table", path=str(tmp_path / "table.npy")), ("b", "a"))
    assert torch.allclose(anchors, factor * rows.flip(0), atol=1e-5)


def test_the_record_names_the_encoder(tmp_path):
    assert run_toy(tmp_path, "lander").result["notes"] == ["text_encoder=ngrams-512"]
    assert lander(LanderSettings(text=TextSettings(encoder="gaussian", dim=64))).notes == ("text_encoder=gaussian-64",)


def test_a_missing_table_is_refused_at_once():
    with pytest.raises(ConfigError, match="table"):
        toy_config("lander", lander={"text": {"encoder": "table"}})


def test_every_client_gets_the_anchors_once_and_the_pool_once_per_task(tmp_path):
    run = run_toy(tmp_path, "lander")
    per_task = 4 * 512 * 2 * 3  # float32, two classes, three clients
    assert extra_traffic(run.result) == {
        "down/train/shared.anchors.1": per_task,
        "down/train/shared.anchors.2": per_task,
        "down/train/shared.anchors.3": per_task,
        "down/train/shared.synthetic_pool": 2 * 8 * 64 * 3 * 2,
    }
    pictures = tmp_path / "lander" / "pictures"
    assert sorted(p.name for p in pictures.iterdir()) == ["task-1.png", "task-2.png"]


def test_a_client_that_joins_late_gets_all_anchors(tmp_path):
    run = run_toy(tmp_path, "lander", scenario={"joins": {"2": 3}})
    sizes = [run.result["traffic"][f"down/train/shared.anchors.{task}"] for task in (1, 2, 3)]
    assert sizes == [4 * 512 * 2 * 3] * 3


def test_the_mapping_layer_is_trained_and_sent_with_the_rest():
    mapping = 4 * (16 * 512 + 512)
    ours, plain = trainable_bytes("lander"), trainable_bytes("finetune")
    assert [a - b for a, b in zip(ours, plain, strict=True)] == [mapping] * 3


def step_of(engine, num_old, num_classes, labels, references):
    generator = torch.Generator().manual_seed(1)
    return Step(
        features=torch.randn(len(labels), 16, generator=generator, requires_grad=True),
        logits=torch.randn(len(labels), num_classes, generator=generator, requires_grad=True),
        labels=labels,
        num_old=num_old,
        num_classes=num_classes,
        num_prototypes=num_classes,
        references=references,
        intermediate=(),
        network=engine.network,
    )


def test_every_term_by_hand():
    engine = Experiment(toy_config("lander"), toy_dataset()).engine
    labels = torch.tensor([3, 4, 5, 3])
    generator = torch.Generator().manual_seed(2)
    ours, theirs, our_map, their_map = (torch.randn(7, d, generator=generator) for d in (3, 3, 512, 512))
    references = {
        "anchors": torch.randn(6, 512, generator=generator),
        "synthetic_logits": ours,
        "previous_logits": theirs,
        "synthetic_mapped": our_map,
        "previous_mapped": their_map,
    }
    step = step_of(engine, 3, 6, labels, references)
    terms = {t.name: t for t in engine.method.active_terms(1)}
    a_cur, a_pre = loss_factors(3, 6)
    mapped = engine.network.extras["mapping"](step.features)
    expected = {
        "ce": a_cur * F.cross_entropy(step.logits[:, 3:], labels - 3),
        "bound": a_cur * (F.mse_loss(mapped, references["anchors"][labels]) - 0.015),
        "kd": -a_pre * (F.softmax(theirs / 2, 1) * F.log_softmax(ours / 2, 1)).sum() / 7,
        "map": a_pre * (our_map - their_map).square().mean(),
    }
    for name, value in expected.items():
        assert terms[name].function(step).item() == pytest.approx(value.item(), rel=1e-5), name
    assert {t.name: t.weight for t in engine.method.active_terms(1)} == {"ce": 1, "bound": 5, "kd": 1, "map": 1}


def test_in_the_first_task_the_losses_have_their_plain_weight():
    engine = Experiment(toy_config("lander"), toy_dataset()).engine
    labels = torch.tensor([0, 1, 1])
    anchors = torch.zeros(2, 512)
    step = step_of(engine, 0, 2, labels, {"anchors": anchors})
    ce, bound = engine.method.active_terms(0)
    assert ce.function(step).item() == pytest.approx(F.cross_entropy(step.logits, labels).item())
    mapped = engine.network.extras["mapping"](step.features)
    assert bound.function(step).item() == pytest.approx(bounding_loss(mapped, anchors[labels], 0.015).item())


@pytest.mark.slow
def test_features_are_pulled_towards_their_anchors(tmp_path):
    run_toy(tmp_path, "lander", train={"rounds": 15}, scenario={"tasks": 2})
    rounds = [e for e in RunFolder.open(tmp_path / "lander").events() if e["event"] == "round"]
    bounds = [e["losses"]["bound"] for e in rounds if e["task"] == 1]
    assert bounds[-1] < 0.5 * bounds[0]


@pytest.mark.slow
def test_other_anchors_give_another_model(tmp_path):
    plain = run_toy(tmp_path / "a", "lander")
    toy = {"generation": {"rounds": 2, "batch": 8, "steps": 2, "warmup": 1, "student_steps": 2}, "batch": 8}
    other = run_toy(tmp_path / "b", "lander", lander={**toy, "text": {"encoder": "gaussian"}})
    assert plain.weights != other.weights
