from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfeat.experiment import Experiment
from fedfeat.federation.runfolder import RunFolder
from fedfeat.federation.server import Progress
from toy import toy_config, toy_dataset


def run(folder: Path, method: str = "fedcbdr+feat", **changes: Any) -> tuple[Experiment, Progress, dict[str, Any]]:
    experiment = Experiment(toy_config(method, **changes), toy_dataset())
    progress = Progress()
    result = experiment.run(RunFolder.create(folder, experiment.config, {}), progress, ())
    return experiment, progress, result


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [e for e in RunFolder.open(folder).events() if e["event"] == kind]


def test_participation_and_joins_are_obeyed(tmp_path: Path) -> None:
    run(tmp_path / "run", scenario={"clients": 4, "participation": 2, "joins": {"3": 2}})
    assert [e["clients"] for e in events(tmp_path / "run", "round")] == [2] * 6


def test_lowest_train_loss_restores_an_earlier_model(tmp_path: Path) -> None:
    # A learning rate that explodes makes the first round the best one.
    changes: dict[str, Any] = {"train": {"lr": 5.0, "lr_min": 0.0, "rounds": 3}, "scenario": {"tasks": 1}}
    _, last, _ = run(tmp_path / "last", **changes)
    changes["train"]["model_selection"] = "lowest_train_loss"
    experiment, best, _ = run(tmp_path / "best", **changes)
    losses = [e["losses"]["first_epoch"] for e in events(tmp_path / "best", "round")]
    assert best.best_weights is not None
    assert torch.equal(best.weights, best.best_weights)
    if int(np.argmin(losses)) == 0:
        assert torch.equal(best.weights, Experiment(experiment.config, toy_dataset()).engine.begin_task(0))
    assert not torch.equal(best.weights, last.weights)


def test_sample_weighting_differs_from_uniform(tmp_path: Path) -> None:
    _, uniform, _ = run(tmp_path / "a")
    _, weighted, _ = run(tmp_path / "b", train={"aggregation": "samples"})
    assert not torch.equal(uniform.weights, weighted.weights)


def test_priors_are_logged_from_the_second_task_on(tmp_path: Path) -> None:
    run(tmp_path / "run")
    rounds = events(tmp_path / "run", "round")
    assert rounds[0]["numbers"] == {}
    assert set(rounds[-1]["numbers"]) == {"prior_head", "prior_tail"}
    assert 0 <= rounds[-1]["numbers"]["prior_head"] <= 1


def test_gsa_is_off_in_the_first_task_and_on_after(tmp_path: Path) -> None:
    run(tmp_path / "run")
    names = [set(e["losses"]) for e in events(tmp_path / "run", "round")]
    assert names[0] == {"ce", "first_epoch"}
    assert names[-1] == {"ce", "gsa", "first_epoch"}


def test_feat_sends_three_more_numbers_than_the_etf_alone(tmp_path: Path) -> None:
    *_, plain = run(tmp_path / "a", "fedcbdr+etf")
    *_, feat = run(tmp_path / "b", "fedcbdr+etf+egc")
    # three numbers of four bytes from each of three clients, in two rounds of two tasks
    assert feat["bytes_up"] - plain["bytes_up"] == 3 * 4 * 3 * 2 * 2
    assert feat["bytes_down"] == plain["bytes_down"]


def test_fedcbdr_sends_features_up_and_singular_vectors_down(tmp_path: Path) -> None:
    experiment, _, result = run(tmp_path / "run", "fedcbdr")
    samples = sum(len(experiment.scenario.samples(t, k)) for t in range(2) for k in range(3))
    dim = experiment.engine.network.backbone.feature_dim
    assert result["traffic"]["up/masked_features/features"] == samples * dim * 4
    assert result["traffic"]["down/leverage/vectors"] <= samples * dim * 4


@pytest.mark.parametrize("option", ["online", "train", "mean"])
def test_prior_options_run_and_agree_in_scale(tmp_path: Path, option: str) -> None:
    changes = {
        "online": {"prior_source": "online"},
        "train": {"prior_transform": "train"},
        "mean": {"prior": "mean"},
    }[option]
    budget = {"budget": 60}  # several batches of exemplars per client
    _, default, _ = run(tmp_path / "a", scenario=budget)
    _, other, _ = run(tmp_path / "b", scenario=budget, feat={"egc": changes})
    assert other.numbers["prior_head"] != default.numbers["prior_head"]
    assert 1 / 4 < other.numbers["prior_head"] / default.numbers["prior_head"] < 4


@pytest.mark.parametrize("mode", ["paper", "repo", "global", "class_quota"])
def test_selection_modes_fill_the_budget(tmp_path: Path, mode: str) -> None:
    experiment, _, _ = run(tmp_path / "run", "fedcbdr", fedcbdr={"mode": mode})
    kept = [s["exemplars"] for s in experiment.engine.states.values() if "exemplars" in s]
    assert sum(len(k) for k in kept) == 12  # type: ignore[arg-type]
    assert all("leverage_scores" not in s for s in experiment.engine.states.values())
    if mode == "class_quota":
        labels = experiment.engine.train_images.labels[torch.cat(kept)]  # type: ignore[arg-type]
        assert torch.bincount(labels).tolist() == [3, 3, 3, 3]


def test_scope_all_chooses_the_refed_buffer_anew(tmp_path: Path) -> None:
    experiment, _, _ = run(tmp_path / "run", "refed", refed={"scope": "all"})
    kept = [s["exemplars"] for s in experiment.engine.states.values()]
    assert sum(len(k) for k in kept) == 12  # type: ignore[arg-type]


def test_a_failure_inside_a_client_names_it(tmp_path: Path) -> None:
    experiment = Experiment(toy_config("finetune"), toy_dataset())

    def broken(client: object, request: object) -> dict[str, Any]:
        raise RuntimeError("out of luck")

    experiment.engine.ops["train"] = broken
    with pytest.raises(RuntimeError) as caught:
        experiment.run(RunFolder.create(tmp_path / "run", experiment.config, {}), Progress(), ())
    assert "client 0" in caught.value.__notes__[0]
    assert "task 1, round 1" in caught.value.__notes__[0]
