from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import fedfeat.federation.loop
from fedfeat.federation.average import average, with_momentum
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment, resume, start
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset, untimed, write_toy


class Run(NamedTuple):
    experiment: Experiment
    progress: Progress
    result: dict[str, Any]


def run(folder: Path, method: str = "fedcbdr+feat", **changes: Any) -> Run:
    experiment = Experiment(toy_config(method, **changes), toy_dataset())
    progress = Progress()
    result = experiment.run(RunFolder.create(folder, experiment.config, {}), progress, ())
    return Run(experiment, progress, result)


class Standard(NamedTuple):
    folder: Path
    run: Run


@pytest.fixture(scope="module")
def feat(tmp_path_factory: pytest.TempPathFactory) -> Standard:
    """A run of FedCBDR with FEAT as it comes."""
    folder = tmp_path_factory.mktemp("feat") / "run"
    return Standard(folder, run(folder))


@pytest.fixture(scope="module")
def larger_budget(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same with several batches of exemplars per client."""
    return run(tmp_path_factory.mktemp("larger") / "run", scenario={"budget": 60})


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [e for e in RunFolder.open(folder).events() if e["event"] == kind]


def test_participation_and_joins_are_obeyed(tmp_path: Path) -> None:
    run(tmp_path / "run", scenario={"clients": 4, "participation": 2, "joins": {"3": 2}})
    assert [e["clients"] for e in events(tmp_path / "run", "round")] == [2] * 6


@pytest.mark.parametrize("best", [0, 1, 3])
def test_lowest_train_loss_restores_an_earlier_model_and_the_priors_measured_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: int
) -> None:
    models: list[torch.Tensor] = []

    def told(*args: Any) -> Any:
        result = average(*args)
        for reply in result.replies.values():
            reply["loss.first_epoch"] = 1.0 if len(models) % 5 == best else 2.0
        models.append(result.weights.clone())
        return result

    monkeypatch.setattr(fedfeat.federation.loop, "average", told)
    train = {"rounds": 5, "model_selection": "lowest_train_loss"}
    _, progress, result = run(tmp_path / "run", train=train, scenario={"tasks": 2})
    # A round's loss is that of the model it started from, whose priors the round before had measured.
    if best > 0:
        assert torch.equal(progress.weights, models[5 + best - 1])
    else:
        assert not any(torch.equal(progress.weights, model) for model in models[5:])
    rounds = [e["numbers"] for e in events(tmp_path / "run", "round") if e["task"] == 2]
    assert progress.numbers == result["numbers"] == pytest.approx(rounds[max(best - 1, 0)])
    assert progress.numbers != pytest.approx(rounds[-1])


@pytest.mark.parametrize("joined", [1, 3, 9])
def test_a_task_can_end_with_the_mean_of_its_last_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joined: int
) -> None:
    models: list[torch.Tensor] = []

    def told(*args: Any) -> Any:
        result = average(*args)
        models.append(result.weights.clone())
        return result

    monkeypatch.setattr(fedfeat.federation.loop, "average", told)
    train = {"rounds": 5, "model_selection": "mean", "mean_rounds": joined}
    _, progress, result = run(tmp_path / "run", train=train, scenario={"tasks": 2})
    torch.testing.assert_close(progress.weights, torch.stack(models[5:][-joined:]).mean(dim=0))
    assert progress.numbers == result["numbers"] == events(tmp_path / "run", "round")[-1]["numbers"]


def test_the_server_has_momentum_within_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: with a momentum of 1/2 and steps 4, -1 the server moves by 4, then by 4 / 2 - 1."""
    first = with_momentum(torch.tensor([1.0, 9.0]), torch.tensor([5.0, 7.0]), None, momentum=0.5, num_trainable=1)
    second = with_momentum(first[0], torch.tensor([4.0, 6.0]), first[1], momentum=0.5, num_trainable=1)
    assert (first[0].tolist(), second[0].tolist()) == ([5.0, 7.0], [6.0, 6.0])
    averages: list[torch.Tensor] = []

    def told(*args: Any) -> Any:
        result = average(*args)
        averages.append(result.weights.clone())
        return result

    monkeypatch.setattr(fedfeat.federation.loop, "average", told)
    train = {"rounds": 2, "server_momentum": 0.5}
    _, progress, _ = run(tmp_path / "run", train=train, scenario={"tasks": 2})
    assert not torch.equal(progress.weights, averages[-1])
    assert progress.tensors == {}, "a velocity ends with its task"


def test_a_run_with_momentum_resumes_with_the_same_bytes(tmp_path: Path) -> None:
    data = {"path": str(write_toy(tmp_path / "toy.npz"))}
    config = toy_config("replay", data=data, train={"rounds": 3, "server_momentum": 0.5}, scenario={"tasks": 2})

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "round" and (event["task"], event["round"]) == (2, 2):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        start(config, tmp_path / "cut", (stop,))
    assert untimed(resume(tmp_path / "cut")) == untimed(start(config, tmp_path / "whole"))


def test_a_round_with_fewer_replies_is_not_the_better_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[torch.Tensor] = []

    def told(*args: Any) -> Any:
        result = average(*args)
        if len(models) % 5 == 1:
            del result.replies[min(result.replies)]
        for reply in result.replies.values():
            reply["loss.first_epoch"] = 1.0 if len(models) % 5 == 3 else 1.1
        models.append(result.weights.clone())
        return result

    monkeypatch.setattr(fedfeat.federation.loop, "average", told)
    train = {"rounds": 5, "model_selection": "lowest_train_loss"}
    _, progress, _ = run(tmp_path / "run", train=train, scenario={"tasks": 2})
    assert torch.equal(progress.weights, models[5 + 3 - 1])


def test_sample_weighting_differs_from_uniform(feat: Standard, tmp_path: Path) -> None:
    _, weighted, _ = run(tmp_path / "run", train={"aggregation": "samples"})
    assert not torch.equal(feat.run.progress.weights, weighted.weights)


def test_priors_are_logged_from_the_second_task_on(feat: Standard) -> None:
    rounds = events(feat.folder, "round")
    assert rounds[0]["numbers"] == {}
    assert set(rounds[-1]["numbers"]) == {"prior_head", "prior_tail"}
    assert 0 <= rounds[-1]["numbers"]["prior_head"] <= 1


def test_gsa_is_off_in_the_first_task_and_on_after(feat: Standard) -> None:
    names = [set(e["losses"]) for e in events(feat.folder, "round")]
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
def test_prior_options_run_and_agree_in_scale(larger_budget: Run, tmp_path: Path, option: str) -> None:
    changes = {
        "online": {"prior_source": "online"},
        "train": {"prior_transform": "train"},
        "mean": {"prior": "mean"},
    }[option]
    _, default, _ = larger_budget
    _, other, _ = run(tmp_path / "run", scenario={"budget": 60}, feat={"egc": changes})
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
