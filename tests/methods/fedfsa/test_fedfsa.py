"""FedFSA against values worked out by hand, and in a run."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedfeat.config.config import make_config
from fedfeat.core.errors import ConfigError
from fedfeat.engines.cuda.simulated import simulated_gpu
from fedfeat.federation.progress import Progress
from fedfeat.methods.class_names import TextSettings, class_features
from fedfeat.methods.fedfsa.fedfsa import (
    CLASSES,
    MEANS,
    VARIANCES,
    FedFSASettings,
    Moments,
    alignment,
    class_moments,
    gather,
    transferred,
)
from fedfeat.methods.fedfsa.projected_head import (
    HeadTraining,
    ProjectedHead,
    Prototypes,
    draw_noise,
    head_loss,
    relation_loss,
    relations,
    server_batch,
    train_head,
)
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from simulated_gpu import repeat
from toy import toy_config, toy_dataset

METHOD = "fedcbdr+fedfsa"
QUICK = {"server_epochs": 3, "text": {"dim": 24}}


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(tmp_path, **changes):
    experiment = Experiment(toy_config(METHOD, **{"fedfsa": QUICK, **changes}), toy_dataset())
    progress = Progress()
    result = experiment.run(RunFolder.create(tmp_path, experiment.config, {}), progress, ())
    return experiment, progress, result


# The alignment with text features.


def test_alignment_is_cross_entropy_over_cosines():
    u, t, labels = draws(6, 5), draws(4, 5, seed=1), torch.tensor([0, 1, 2, 3, 3, 0])
    cosines = torch.stack([torch.stack([F.cosine_similarity(a, b, dim=0) for b in t]) for a in u])
    torch.testing.assert_close(alignment(u, t, labels, 0.5), F.cross_entropy(cosines / 0.5, labels))


def test_alignment_by_hand():
    # Cosines 1 and 0 at tau = 0.5: log(1 + e^-2); lengths do not matter.
    value = alignment(torch.tensor([[7.0, 0.0]]), torch.tensor([[0.1, 0.0], [0.0, 3.0]]), torch.tensor([0]), 0.5)
    assert float(value) == pytest.approx(math.log(1 + math.exp(-2.0)))


def test_alignment_of_a_zero_feature_is_finite():
    u = torch.zeros(1, 3, requires_grad=True)
    value = alignment(u, torch.eye(3), torch.tensor([1]), 0.5)
    value.backward()
    assert value.item() == pytest.approx(math.log(3.0))
    assert torch.isfinite(u.grad).all()


# Class means and variances.


def test_moments_are_of_the_population_and_sorted_by_class():
    features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 2.0], [9.0, 9.0]])
    moments = class_moments(features, torch.tensor([4, 4, 4, 1]))
    assert moments.classes.tolist() == [1, 4]
    assert moments.counts.tolist() == [1, 3]
    torch.testing.assert_close(moments.means, torch.tensor([[9.0, 9.0], [3.0, 2 / 3]]))
    torch.testing.assert_close(moments.variances, torch.tensor([[0.0, 0.0], [8 / 3, 8 / 9]]))


def test_a_single_sample_gets_a_tenth_of_the_largest_class_variance():
    moments = class_moments(draws(11, 4), torch.tensor([0] * 7 + [1] + [2] * 3))
    mixed = transferred(moments, 0.1)
    torch.testing.assert_close(mixed[1], 0.1 * moments.variances[0])
    torch.testing.assert_close(mixed[0], moments.variances[0])
    torch.testing.assert_close(mixed[2], 0.9 * moments.variances[2] + 0.1 * moments.variances[0])


def test_without_any_large_class_the_first_of_the_largest_lends():
    moments = Moments(torch.tensor([2, 5]), torch.tensor([2, 2]), torch.zeros(2, 1), torch.tensor([[4.0], [8.0]]))
    assert transferred(moments, 0.1).flatten().tolist() == pytest.approx([4.0, 0.9 * 8 + 0.1 * 4])


# Relations.


def reference_relations(x):
    """Distances and cosines as loops over pairs and triples."""
    n = len(x)
    distances = torch.tensor([[float((x[i] - x[j]).norm()) for j in range(n)] for i in range(n)], dtype=x.dtype)
    cosines = torch.zeros(n, n, n, dtype=x.dtype)
    for j in range(n):
        for i in range(n):
            for k in range(n):
                a, b = x[i] - x[j], x[k] - x[j]
                if a.norm() > 0 and b.norm() > 0:
                    cosines[j, i, k] = a @ b / a.norm() / b.norm()
    return distances, cosines


def test_relations_are_those_of_all_pairs_and_triples():
    x = draws(6, 5)
    x[3] = x[1]
    found, expected = relations(x), reference_relations(x)
    torch.testing.assert_close(found.distances, expected[0])
    torch.testing.assert_close(found.cosines, expected[1])


def test_relation_loss_by_hand():
    # Points 0, 1, 3 on a line against an equilateral triangle of side 2.
    line = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    triangle = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, math.sqrt(3)]], dtype=torch.float64)
    distance = 2 * ((1 / 2 - 1) ** 2 + (3 / 2 - 1) ** 2 + (2 / 2 - 1) ** 2) / 9  # the line's mean distance is 2
    # Ordered pairs at 0, 1 and 3: cosines 1, -1, 1 against 1/2; equal pairs agree.
    angle = 2 * ((1 - 0.5) ** 2 + (-1 - 0.5) ** 2 + (1 - 0.5) ** 2) / 27
    assert float(relation_loss(relations(line), relations(triangle))) == pytest.approx(distance + angle)


def test_relation_loss_is_zero_for_a_scaled_rotation():
    x = draws(5, 4)
    rotation = torch.linalg.qr(draws(4, 4, seed=2))[0]
    assert float(relation_loss(relations(3 * x @ rotation + 1), relations(x))) < 1e-20


def test_relations_of_labels_repeat_rows():
    text, labels = draws(3, 4), torch.tensor([2, 0, 2, 1])
    repeated = relations(text).at(labels)
    torch.testing.assert_close(repeated.distances, relations(text[labels]).distances)
    torch.testing.assert_close(repeated.cosines, relations(text[labels]).cosines)


def test_relation_loss_has_finite_gradients_where_points_coincide():
    x = torch.zeros(4, 3, requires_grad=True)
    relation_loss(relations(x), relations(draws(4, 3).float())).backward()
    assert torch.isfinite(x.grad).all()


def test_one_class_has_no_relations():
    teacher = relations(draws(2, 4)).at(torch.tensor([1, 1, 1]))
    assert float(relation_loss(relations(draws(3, 4)), teacher)) == 0


# The head and its training on the server.


def small_head(dim=4, width=6, classes=3):
    torch.manual_seed(0)
    head = ProjectedHead(dim, width, seed=0)
    head.grow(classes, 0)
    return head


def small_prototypes(per_class=3, classes=3, dim=4):
    labels = torch.arange(classes).repeat(per_class)
    means = 2 * torch.eye(dim)[labels] + 0.1 * draws(len(labels), dim).float()
    return Prototypes(labels, means, torch.full((len(labels), dim), 0.01))


def test_the_feature_of_the_head_is_the_pooled_one():
    head, pooled = small_head(), draws(2, 4).float()
    assert head.feature(pooled) is pooled
    hidden = F.relu(F.linear(pooled, head.layers[0].weight, head.layers[0].bias))
    projected = F.linear(hidden, head.layers[2].weight, head.layers[2].bias)
    torch.testing.assert_close(head(pooled), F.linear(projected, head.weight, head.bias))


def test_growing_keeps_old_rows():
    head = small_head()
    head.bias.data += 1
    weight, bias = head.weight.clone(), head.bias.clone()
    layers = [p.clone() for p in head.layers.parameters()]
    head.grow(5, 1)
    assert head.num_classes == head.num_prototypes == 5
    assert torch.equal(head.weight[:3], weight)
    assert torch.equal(head.bias, torch.cat([bias, torch.zeros(2)]))
    assert all(torch.equal(a, b) for a, b in zip(layers, head.layers.parameters(), strict=True))


@pytest.mark.parametrize(("mode", "rows"), [("p1", 2), ("p2", 4), ("p3", 6), ("p4", 6), ("p5", 6)])
def test_what_each_mode_trains_on(mode, rows):
    settings = HeadTraining(server_mode=mode)
    seen = small_prototypes()
    noise = draw_noise(seen, settings, np.random.default_rng(0))
    features, labels = server_batch(seen, torch.tensor([1, 5]), noise, settings)
    assert features.shape == (rows, 4)
    assert labels.tolist() == [1, 2] * (rows // 2)
    if mode != "p2":
        assert torch.equal(features[:2], seen.means[[1, 5]])
    if mode != "p1":
        torch.testing.assert_close(features[-1], seen.means[5] + 0.1 * noise[1, 5])


def test_draws_can_be_kept_non_negative():
    seen = Prototypes(torch.tensor([0]), torch.zeros(1, 50), torch.ones(1, 50))
    for clamp in (False, True):
        settings = HeadTraining(server_mode="p2", clamp=clamp)
        features, _ = server_batch(
            seen, torch.tensor([0]), draw_noise(seen, settings, np.random.default_rng(0)), settings
        )
        assert (features.min() >= 0) == clamp


def test_the_loss_of_each_mode():
    head, text = small_head(), relations(torch.eye(6)[:3])
    features, labels = draws(4, 4).float(), torch.tensor([0, 1, 2, 0])
    plain = F.cross_entropy(head(features), labels)
    related = relation_loss(relations(head.project(features)), text.at(labels))
    for mode in ("p1", "p2", "p3"):
        torch.testing.assert_close(head_loss(head, features, labels, text, HeadTraining(server_mode=mode)), plain)
    for mode in ("p4", "p5"):
        settings = HeadTraining(server_mode=mode, relation=0.5)
        torch.testing.assert_close(head_loss(head, features, labels, text, settings), plain + 0.5 * related)
    alone = head_loss(head, features[:1], labels[:1], text, HeadTraining())
    torch.testing.assert_close(alone, F.cross_entropy(head(features[:1]), labels[:1]))


@pytest.mark.parametrize("round", [0, 4, 5])
def test_one_step_on_the_server_is_plain_sgd(round):
    settings = HeadTraining(server_mode="p1", server_epochs=1, server_batch=100)
    head, seen, text = small_head(), small_prototypes(), torch.eye(6)[:3]
    loss = F.cross_entropy(head(seen.means), seen.labels)
    gradients = torch.autograd.grad(loss, list(head.parameters()))
    lr = 0.1 if round < 5 else 0.01
    expected = [p - lr * (g + 1e-5 * p) for p, g in zip(head.parameters(), gradients, strict=True)]
    reported = train_head(head, seen, text, settings, np.random.default_rng(0), round)
    assert reported == pytest.approx(loss.item(), rel=1e-5)
    for found, value in zip(head.parameters(), expected, strict=True):
        torch.testing.assert_close(found.detach(), value.detach())


def test_the_learning_rate_falls_tenfold():
    seen, text = small_prototypes(), torch.eye(6)[:3]
    moves = []
    for epochs in (1, 2):
        settings = HeadTraining(server_mode="p1", server_epochs=epochs, decay_every=1, server_batch=100)
        head = small_head()
        train_head(head, seen, text, settings, np.random.default_rng(0), 0)
        moves.append(head.weight.detach().clone())
    assert (moves[1] - moves[0]).norm() == pytest.approx(0.1 * (moves[0] - small_head().weight).norm().item(), rel=0.1)


@pytest.mark.parametrize("mode", ["p1", "p2", "p3", "p4", "p5"])
def test_training_the_head_separates_the_classes_and_is_repeatable(mode):
    seen, text = small_prototypes(), class_features(TextSettings(dim=6), ("cat", "dog", "sea")).features
    heads = []
    for _ in range(2):
        head = small_head()
        settings = HeadTraining(server_mode=mode, server_epochs=90, decay_every=90)
        train_head(head, seen, text, settings, np.random.default_rng(3), 0)
        heads.append(head)
    assert all(torch.equal(a, b) for a, b in zip(heads[0].parameters(), heads[1].parameters(), strict=True))
    accuracy = (heads[0](seen.means).argmax(1) == seen.labels).float().mean()
    assert accuracy == 1


def test_captured_steps_train_the_same_head():
    seen, text = small_prototypes(), torch.eye(6)[:3]
    settings = HeadTraining(server_epochs=4, decay_every=2, server_batch=4)  # of nine means: 4, 4 and 1
    plain, captured = small_head(), small_head()
    losses = [train_head(plain, seen, text, settings, np.random.default_rng(0), 0)]
    with simulated_gpu():
        losses.append(train_head(captured, seen, text, settings, np.random.default_rng(0), 0, repeat))
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), captured.parameters(), strict=True))


def test_clients_are_stacked_in_the_order_of_their_ids():
    replies = {
        7: {CLASSES: torch.tensor([0, 2]).int(), MEANS: torch.ones(2, 3), VARIANCES: torch.ones(2, 3)},
        3: {CLASSES: torch.tensor([1]).int(), MEANS: torch.zeros(1, 3), VARIANCES: torch.zeros(1, 3)},
    }
    stacked = gather(replies)
    assert stacked.labels.tolist() == [1, 0, 2]
    assert stacked.labels.dtype == torch.long
    assert stacked.means[:, 0].tolist() == [0, 1, 1]


# In a run.


def test_upload_is_two_vectors_and_an_id_per_class(tmp_path):
    experiment, _, result = run(tmp_path / "run")
    scenario, dim = experiment.scenario, experiment.engine.network.backbone.feature_dim
    labels = toy_dataset().train_labels
    first = sum(len(set(labels[scenario.samples(0, k)].tolist())) for k in range(3)) * 2  # two rounds
    sent = result["traffic"]["up/train/fedfsa.classes"] / 4
    assert sent > first
    assert result["traffic"]["up/train/fedfsa.means"] == 4 * dim * sent
    assert result["traffic"]["up/train/fedfsa.variances"] == 4 * dim * sent
    one_task = run(tmp_path / "one", scenario={"tasks": 1})
    held = sum(len(set(labels[one_task[0].scenario.samples(0, k)].tolist())) for k in range(3)) * 2
    per_class = 2 * dim + 1
    assert sum(v for k, v in one_task[2]["traffic"].items() if "fedfsa" in k) == 4 * per_class * held


def test_selection_sees_pooled_features(tmp_path):
    experiment, _, result = run(tmp_path / "run")
    dim = experiment.engine.network.backbone.feature_dim
    rows = sum(len(experiment.scenario.samples(t, k)) for t in range(2) for k in range(3))
    assert result["traffic"]["up/masked_features/features"] == 4 * dim * rows


def test_the_server_changes_the_head_and_nothing_else(tmp_path):
    """The first round ends with the same backbone whether or not the server trains."""
    weights = []
    for epochs in (0, 3):
        changes = {"train": {"rounds": 1}, "scenario": {"tasks": 1}, "fedfsa": {**QUICK, "server_epochs": epochs}}
        experiment, progress, _ = run(tmp_path / str(epochs), **changes)
        experiment.engine.model.load(progress.weights)
        weights.append({name: value.clone() for name, value in experiment.engine.model.named_values().items()})
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]) != name.startswith("head.")


def test_the_record_names_encoder_and_mode(tmp_path):
    experiment, progress, _ = run(tmp_path / "run")
    assert "text_encoder=ngrams-24" in experiment.method.notes
    assert "server_mode=p5" in experiment.method.notes
    assert progress.numbers["fedfsa.server_loss"] > 0


def test_published_defaults():
    settings = FedFSASettings()
    assert (settings.mu, settings.tau, settings.draws, settings.server_batch, settings.relation) == (2, 0.5, 2, 32, 1)
    assert (settings.server_mode, settings.server_epochs, settings.transfer) == ("p5", 100, 0.1)
    assert (settings.server_lr_first, settings.server_lr, settings.first_rounds, settings.decay_every) == (
        0.1,
        0.01,
        5,
        40,
    )
    assert settings.text.prompt == "a photo of {class}."
    assert settings.text.dim == 512


def test_other_heads_and_missing_encoders_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="fedfsa brings its own head"):
        make_config({"method": "fedcbdr+etf+fedfsa"})
    table = {"encoder": "table", "path": str(tmp_path / "no.npy")}
    with pytest.raises(ConfigError, match="is not a file"):
        make_config({"method": METHOD, "fedfsa": {"text": table}})
