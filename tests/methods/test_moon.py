"""MOON: the contrast by hand, and which frozen models a client compares itself with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedfeat.core.errors import ConfigError
from fedfeat.federation.progress import Progress
from fedfeat.methods.moon import Past, model_contrast, past_models, remember
from fedfeat.models import FlatModel
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset

PROPERTY = settings(max_examples=30, deadline=None, derandomize=True)


def rows(count: int = 5, dim: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def test_without_a_previous_model_the_loss_is_exactly_zero() -> None:
    assert float(model_contrast(rows(), rows(seed=1), torch.empty(0, 5, 8), 0.5)) == 0.0


@pytest.mark.parametrize("models", [1, 2, 5])
def test_references_in_the_same_direction_give_the_log_of_their_number(models: int) -> None:
    z = rows()
    loss = model_contrast(z, 3.0 * z, torch.stack([0.1 * z] * models), 0.5)
    assert float(loss) == pytest.approx(math.log(1 + models), abs=1e-6)


def test_the_contrast_by_hand() -> None:
    # One sample at (1, 0); the global model says (1, 1), the previous one (0, 1): cosines 1/sqrt(2) and 0.
    z, z_global, z_previous = (torch.tensor([v]) for v in ([1.0, 0.0], [1.0, 1.0], [0.0, 1.0]))
    expected = math.log(1 + math.exp((0 - 1 / math.sqrt(2)) / 0.5))
    assert float(model_contrast(z, z_global, z_previous[None], 0.5)) == pytest.approx(expected, abs=1e-6)
    # Nearest to the global model and opposite to the previous one: log(1 + e^(-2/tau)).
    assert float(model_contrast(z, z, -z[None], 0.5)) == pytest.approx(math.log1p(math.exp(-4)), abs=1e-6)


@PROPERTY
@given(seed=st.integers(0, 1000), tau=st.sampled_from([0.1, 0.5, 1.0]), models=st.integers(1, 3))
def test_the_contrast_equals_the_literal_formula(seed: int, tau: float, models: int) -> None:
    z, z_global = rows(seed=seed), rows(seed=seed + 1)
    z_previous = torch.stack([rows(seed=seed + 2 + m) for m in range(models)])
    total = 0.0
    for i in range(len(z)):
        near = math.exp(float(torch.cosine_similarity(z[i], z_global[i], dim=0)) / tau)
        far = [math.exp(float(torch.cosine_similarity(z[i], p[i], dim=0)) / tau) for p in z_previous]
        total -= math.log(near / (near + sum(far)))
    assert float(model_contrast(z, z_global, z_previous, tau)) == pytest.approx(total / len(z), rel=1e-5)


def test_gradients_pull_to_the_global_model_and_dead_features_stay_finite() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 0.0]], requires_grad=True)
    model_contrast(z, torch.tensor([[0.0, 1.0]] * 2), torch.tensor([[[0.0, -1.0]] * 2]), 0.5).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()
    assert z.grad[0, 1] < 0, "descent turns towards the global model's direction"


def test_a_batch_of_one_keeps_its_dimension() -> None:
    z = rows(1)
    assert float(model_contrast(z, z, z[None], 0.5)) == pytest.approx(math.log(2), abs=1e-6)


def test_remembered_models_come_back_oldest_first() -> None:
    state: dict[str, Any] = {"exemplars": torch.arange(3)}
    remember(state, [Past(torch.zeros(2), 0), Past(torch.ones(3), 1)])
    assert [(m.vector.tolist(), m.task) for m in past_models(state)] == [([0.0, 0.0], 0), ([1.0, 1.0, 1.0], 1)]
    remember(state, [Past(torch.ones(3), 1)])
    assert sorted(state) == ["exemplars", "moon.task.0", "moon.vector.0"]


class LocalUpdates:
    """Clients' updates one by one, with what the engine froze during each."""

    def __init__(self, method: str = "replay+moon", **changes: Any) -> None:
        self.engine = Experiment(toy_config(method, **changes), toy_dataset()).engine
        self.weights = self.engine.begin_task(0)
        self.frozen: dict[str, tuple[Tensor, int]] = {}
        make = self.engine.frozen

        def watched(name: str, vector: Tensor, task: int) -> Any:
            self.frozen[name] = vector.clone(), task
            return make(name, vector, task)

        self.engine.frozen = watched  # type: ignore[method-assign]

    def begin_task(self, task: int) -> None:
        self.weights = self.engine.begin_task(task, self.weights)

    def update(self, client: int, round: int = 0) -> tuple[Tensor, Mapping[str, Any]]:
        self.engine.round, self.frozen = round, {}
        asked = self.engine.client(client)
        reply = self.engine.ops["train"](asked, {"weights": self.weights})
        self.engine.states[client] = asked.state
        trained = reply.pop("weights")
        assert isinstance(trained, Tensor)
        self.weights = trained.clone()
        return self.weights, reply


def test_a_first_update_freezes_nothing_and_the_next_one_the_received_and_the_own_model() -> None:
    updates = LocalUpdates()
    mine, reply = updates.update(0)
    assert updates.frozen == {}
    assert reply["loss.moon"] == 0.0
    theirs, _ = updates.update(1)
    _, reply = updates.update(0, 1)
    assert set(updates.frozen) == {"moon.global", "moon.past.0"}
    assert torch.equal(updates.frozen["moon.global"][0], theirs)
    assert torch.equal(updates.frozen["moon.past.0"][0], mine)
    assert reply["loss.moon"] > 0
    assert set(reply) == {"samples", "loss.ce", "loss.moon", "loss.first_epoch"}, "nothing more is sent"


def test_an_absent_client_keeps_its_older_model_also_across_a_task() -> None:
    updates = LocalUpdates()
    mine, _ = updates.update(0)
    updates.update(1)
    updates.begin_task(1)
    updates.update(0)
    vector, task = updates.frozen["moon.past.0"]
    assert torch.equal(vector, mine)
    assert task == 0
    assert updates.frozen["moon.global"][1] == 1
    assert len(updates.frozen["moon.global"][0]) > len(vector), "the head grew in between"


def test_models_can_be_forgotten_at_a_task() -> None:
    updates = LocalUpdates(moon={"reset_prev_at_task": True, "models": 2})
    updates.update(0)
    updates.update(0, 1)
    assert "moon.past.0" in updates.frozen
    updates.begin_task(1)
    _, reply = updates.update(0)
    assert updates.frozen == {}
    assert reply["loss.moon"] == 0.0
    assert [m.task for m in past_models(updates.engine.states[0])] == [1]


def test_the_newest_models_are_kept_off_the_device() -> None:
    updates = LocalUpdates(moon={"models": 2})
    vectors = [updates.update(0, r)[0] for r in range(4)]
    kept = past_models(updates.engine.states[0])
    assert [torch.equal(m.vector, v) for m, v in zip(kept, vectors[2:], strict=True)] == [True, True]
    assert all(m.vector.device.type == "cpu" for m in kept)
    assert all(m.vector.data_ptr() != updates.engine.model.vector.data_ptr() for m in kept)


def test_frozen_models_do_not_move_their_statistics_or_need_gradients() -> None:
    updates = LocalUpdates()
    updates.update(0)
    seen = {}
    make = updates.engine.frozen

    def keep(name: str, vector: Tensor, task: int) -> Any:
        seen[name] = make(name, vector, task), vector.clone()
        return seen[name][0]

    updates.engine.frozen = keep  # type: ignore[method-assign]
    updates.update(0, 1)
    for network, vector in seen.values():
        assert not network.training
        assert torch.equal(FlatModel(network).vector, vector)
        assert not any(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize(
    ("head", "features", "extra"), [("side", 16, True), ("none", 16, False), ("inline", 24, False)]
)
def test_projections(head: str, features: int, extra: bool) -> None:
    updates = LocalUpdates(moon={"head": head, "dim": 24})
    network = updates.engine.network
    images = updates.engine.train_images.plain(torch.arange(4))
    assert network.features(images).shape == (4, features)
    assert network.head.weight.shape == (2, features)
    assert ("moon" in network.extras) == extra
    if extra:
        shapes = [tuple(p.shape) for p in network.extras.parameters()]
        assert shapes == [(16, 16), (16,), (24, 16), (24,)]
        before = updates.weights
        updates.update(0)
        updates.update(0, 1)
        layout = updates.engine.model.layout
        size = sum(math.prod(s) for n, s in layout.items() if n.startswith("extras"))
        end = updates.engine.model.num_trainable
        assert not torch.equal(updates.weights[end - size : end], before[end - size : end]), "trained and averaged"


@pytest.mark.parametrize("head", ["side", "none", "inline"])
def test_every_layout_survives_growth_and_a_whole_run(head: str, tmp_path: Path) -> None:
    config = toy_config("herding+moon", moon={"head": head, "dim": 12, "models": 2})
    experiment = Experiment(config, toy_dataset())
    result = experiment.run(RunFolder.create(tmp_path / "run", config, {}), Progress(), ())
    assert len(result["accuracy_after_task"]) == 3
    assert experiment.engine.network.head.weight.shape[0] == 6


def test_side_and_none_leave_the_classifier_as_it_is() -> None:
    plain = LocalUpdates("replay").engine.model
    side, bare = (LocalUpdates("replay+moon", moon={"head": h}).engine.model for h in ("side", "none"))
    assert bare.layout == plain.layout
    assert torch.equal(bare.vector, plain.vector)
    assert {n: s for n, s in side.layout.items() if not n.startswith("extras.")} == plain.layout


@pytest.mark.parametrize("base", ["fedcbdr+feat", "lander"])
def test_inline_needs_the_linear_classifier_and_no_layers_on_the_backbone(base: str) -> None:
    with pytest.raises(ConfigError, match=r"moon.head: 'inline' .* take moon.head = 'side'"):
        toy_config(f"{base}+moon", moon={"head": "inline"})
    toy_config(f"{base}+moon", moon={"head": "side"})
