"""The CUDA engine beside the in-process engine, on an NVIDIA GPU if there is one, on a simulated card elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from simulated_gpu import simulate

from fedfeat.core.errors import ConfigError
from fedfeat.data.dataset import Augmentation, Dataset
from fedfeat.engines.cuda.arithmetic import Own, Plain
from fedfeat.engines.cuda.engine import CudaEngine
from fedfeat.engines.cuda.local_update import LocalUpdate
from fedfeat.engines.cuda.replica import Replica
from fedfeat.federation.progress import Progress
from fedfeat.methods import all_methods
from fedfeat.methods.data_free.pool import POOL
from fedfeat.methods.fedlwf import PreviousModel
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from gpu import GpuBench
from toy import toy_config, toy_dataset

CARD = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def card(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not CARD and "no_gpu" not in request.keywords:
        simulate(monkeypatch)


def larger(dataset: Dataset) -> Dataset:
    """Every pixel four times: ResNet-18 then ends in a map of 2x2, and BatchNorm can train on one sample."""
    train, test = (i.repeat(2, axis=1).repeat(2, axis=2) for i in (dataset.train_images, dataset.test_images))
    return replace(dataset, train_images=train, test_images=test)


def run(folder: Path, method: str, engine: dict[str, Any], **changes: Any) -> tuple[Progress, dict[str, Any]]:
    config = toy_config(method, engine={"device": "cuda", **engine}, **changes)
    dataset = toy_dataset(Augmentation(1, True, 0.2))
    experiment = Experiment(config, larger(dataset) if config.model.name == "resnet18" else dataset)
    progress = Progress()
    result = experiment.run(RunFolder.create(folder, config, {}), progress, ())
    return progress, result


def look_for_triton(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    """Let the engine find this where it looks for Triton."""
    monkeypatch.setattr("fedfeat.engines.cuda.arithmetic.importlib", Mock(**{"util.find_spec.return_value": found}))


def difference(a: Progress, b: Progress) -> float:
    return float((a.weights - b.weights).norm() / b.weights.norm())


@pytest.mark.no_gpu
@pytest.mark.skipif(CARD, reason="there is a GPU")
def test_without_a_gpu_the_engine_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU"):
        Experiment(toy_config("finetune", engine={"name": "cuda", "device": "cpu"}), toy_dataset())


def test_kernels_that_are_not_there_are_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    look_for_triton(monkeypatch, None)
    config = toy_config("finetune", engine={"name": "cuda", "device": "cuda", "kernels": "triton"})
    with pytest.raises(ConfigError, match="triton is not installed here"):
        Experiment(config, toy_dataset())


@pytest.mark.parametrize(("found", "kind"), [(object(), Own), (None, Plain)])
def test_kernels_are_our_own_where_triton_is_installed(
    monkeypatch: pytest.MonkeyPatch, found: object, kind: type[Plain]
) -> None:
    look_for_triton(monkeypatch, found)
    experiment = Experiment(toy_config("finetune", engine={"name": "cuda", "device": "cuda"}), toy_dataset())
    assert isinstance(experiment.engine, CudaEngine)
    assert type(experiment.engine.arithmetic) is kind


PLAIN = ["finetune", "fedcbdr", "fedcbdr+feat", "refed+feat", "fedcbdr+feat+calibrate"]
# Rounding on a card is another one; a simulated card rounds as the engine in process does, nearly everywhere.
TOLERANCE = 1e-4 if CARD else 1e-6
needs_card = pytest.mark.skipif(not CARD, reason="only on an NVIDIA GPU")
# What these bind to a client's steps differs from update to update: teachers, anchors, importances, control variates,
# draws of synthetic batches.
BINDING = ["fedlwf", "fedewc", "fedssi", "replay+fedprox", "replay+scaffold", "replay+moon", "replay+feat+fedprox"]
BINDING += ["target", "lander"]


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *((m, "small-cnn") for m in PLAIN + BINDING),
        ("fedcbdr+feat", "resnet18"),
        *(pytest.param(m, "resnet18", marks=needs_card) for m in PLAIN if m != "fedcbdr+feat"),
    ],
)
def test_full_precision_agrees_with_the_engine_in_process(tmp_path: Path, method: str, model: str) -> None:
    # Batches of 7 leave remainders of many sizes, of one sample too.
    # At a small learning rate, since steps amplify what the engines round differently, those of ResNet-18 most.
    small = model == "small-cnn"
    train = {"batch": 7, "rounds": 2 if small else 1, "local_epochs": 2 if small else 1, "lr": 0.02 if small else 0.002}
    found = []
    # Where a maximum is undecided, one rounding parts two runs for good: that is one seed in ten. A mistake parts all.
    for seed in (0, 1):
        changes: dict[str, Any] = {"model": {"name": model}, "train": train, "scenario": {"tasks": 2}, "seed": seed}
        ours, result = run(tmp_path / f"{seed}a", method, {"name": "cuda", "kernels": "torch"}, **changes)
        theirs, reference = run(tmp_path / f"{seed}b", method, {"name": "inprocess"}, **changes)
        assert result["traffic"] == reference["traffic"]
        assert abs(result["final_accuracy"] - reference["final_accuracy"]) <= 2
        found.append(difference(ours, theirs))
        if found[-1] < TOLERANCE:
            assert ours.numbers == pytest.approx(theirs.numbers, rel=1e-3, abs=1e-6)
            assert len(ours.tables) == len(theirs.tables) == 2
            for ours_after, theirs_after in zip(ours.tables, theirs.tables, strict=True):
                moved = np.abs(ours_after.plain - theirs_after.plain).sum() / 2
                assert moved <= 0.005 * theirs_after.plain.sum()
            return
    raise AssertionError(f"weights differ by {found}")


def test_batches_may_be_larger_than_what_any_client_holds(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"train": {"batch": 64, "rounds": 1, "local_epochs": 1}, "scenario": {"tasks": 2}}
    ours, _ = run(tmp_path / "a", "finetune", {"name": "cuda", "kernels": "torch"}, **changes)
    theirs, _ = run(tmp_path / "b", "finetune", {"name": "inprocess"}, **changes)
    assert difference(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("method", ["fedcbdr+feat", "replay+fedprox"])
def test_kernels_of_our_own_agree_with_pytorchs(tmp_path: Path, method: str) -> None:
    pytest.importorskip("triton")
    changes: dict[str, Any] = {
        "train": {"batch": 7, "rounds": 1, "local_epochs": 1, "lr": 0.02},
        "scenario": {"tasks": 2},
    }
    found = []
    for seed in (0, 1):
        ours, _ = run(tmp_path / f"{seed}a", method, {"name": "cuda", "kernels": "triton"}, **changes, seed=seed)
        theirs, _ = run(tmp_path / f"{seed}b", method, {"name": "inprocess"}, **changes, seed=seed)
        found.append(difference(ours, theirs))
        if found[-1] < TOLERANCE:
            return
    raise AssertionError(f"weights differ by {found}")


@pytest.mark.parametrize(
    "engine",
    [
        {"precision": "fp32", "kernels": "torch"},
        {"precision": "bf16", "kernels": "torch"},
        pytest.param({"precision": "bf16", "kernels": "compiled"}, marks=needs_card),
        pytest.param({"precision": "bf16", "kernels": "triton"}, marks=needs_card),
    ],
)
def test_the_same_run_twice_has_the_same_bytes(tmp_path: Path, engine: dict[str, Any]) -> None:
    runs = [run(tmp_path / str(n), "fedcbdr+feat", {"name": "cuda", **engine}) for n in range(2)]
    assert torch.equal(runs[0][0].weights, runs[1][0].weights)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("method", ["fedcbdr+feat", "replay+scaffold"])
def test_the_number_of_replicas_changes_nothing(tmp_path: Path, method: str, replicas: int) -> None:
    ours, _ = run(tmp_path / "a", method, {"name": "cuda", "kernels": "torch", "replicas": replicas})
    theirs, _ = run(tmp_path / "b", method, {"name": "cuda", "kernels": "torch", "replicas": 1})
    assert torch.equal(ours.weights, theirs.weights)


def captures_in_its_second_task(folder: Path, method: str) -> bool:
    config = toy_config(method, engine={"device": "cuda", "name": "cuda", "kernels": "torch"}, scenario={"tasks": 2})
    experiment = Experiment(config, toy_dataset())
    experiment.run(RunFolder.create(folder, config, {}), Progress(), ())
    assert isinstance(experiment.engine, CudaEngine)
    return bool(experiment.engine.replicas)


@pytest.mark.parametrize("method", BINDING)
def test_methods_are_captured_in_their_second_task(tmp_path: Path, method: str) -> None:
    assert captures_in_its_second_task(tmp_path / "run", method)


def test_what_cannot_be_captured_is_trained_client_after_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = PreviousModel.start

    def opaque(self: PreviousModel, client: Any, request: Any) -> Any:
        look = start(self, client, request)
        return look and (lambda images: look(images))

    monkeypatch.setattr(PreviousModel, "start", opaque)
    assert not captures_in_its_second_task(tmp_path / "run", "fedlwf")


@pytest.mark.parametrize("method", ["target", "lander"])
def test_gradients_go_through_synthetic_batches_in_half_precision(tmp_path: Path, method: str) -> None:
    changes: dict[str, Any] = {"scenario": {"tasks": 2}, "train": {"batch": 7, "rounds": 1, "local_epochs": 1}}
    ours, _ = run(tmp_path / "a", method, {"name": "cuda", "kernels": "torch", "precision": "bf16"}, **changes)
    theirs, _ = run(tmp_path / "b", method, {"name": "inprocess", "precision": "bf16"}, **changes)
    # Without their gradient TARGET ends 0.015 away.
    assert difference(ours, theirs) < (5e-3 if CARD else TOLERANCE)


@pytest.mark.parametrize("method", ["target", "lander"])
def test_the_servers_student_is_captured_and_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    replays = []
    repeat = CudaEngine.repeat

    def counted(self: CudaEngine, work: Any, touched: Any) -> Any:
        replay = repeat(self, work, touched)
        return lambda: replays.append(replay())

    monkeypatch.setattr(CudaEngine, "repeat", counted)
    changes: dict[str, Any] = {"scenario": {"tasks": 2}, "train": {"rounds": 1, "local_epochs": 1}}
    ours, _ = run(tmp_path / "a", method, {"name": "cuda", "kernels": "torch"}, **changes)
    theirs, _ = run(tmp_path / "b", method, {"name": "inprocess"}, **changes)
    settings = toy_config(method).parts[method].generation
    learning = settings.rounds - (settings.warmup if method == "target" else 0)
    assert len(replays) == learning * (settings.student_steps - 1) > 0
    pools = [progress.shared[POOL].float() for progress in (ours, theirs)]
    assert (pools[0] - pools[1]).abs().mean() < (2 if CARD else 0.01)


def test_priors_measured_while_training_agree(tmp_path: Path) -> None:
    changes = {"feat": {"egc": {"prior_source": "online"}}, "scenario": {"tasks": 2}}
    ours, _ = run(tmp_path / "a", "replay+feat", {"name": "cuda", "kernels": "torch"}, **changes)
    theirs, _ = run(tmp_path / "b", "replay+feat", {"name": "inprocess"}, **changes)
    assert ours.numbers == pytest.approx(theirs.numbers, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_borrowed_replica_encodes_with_whatever_model_was_loaded(tmp_path: Path, precision: str) -> None:
    config = toy_config("replay", engine={"device": "cuda", "name": "cuda", "kernels": "torch", "precision": precision})
    experiment = Experiment(config, toy_dataset())
    experiment.run(RunFolder.create(tmp_path / "run", config, {}), Progress(), ())
    engine = experiment.engine
    assert isinstance(engine, CudaEngine)
    assert engine.replicas
    client, chosen = engine.client(0), torch.arange(5, device=engine.device)
    for scale in (1.0, 0.5):
        other = scale * engine.replicas[0].model.vector.abs()
        client.model.load(other)
        engine.model.load(other)
        with torch.no_grad():
            expected = engine.network.eval().features(engine.train_images.plain(chosen))
        assert torch.allclose(client.encode(chosen), expected, rtol=0.02 if precision == "bf16" else 1e-4)


def test_exemplars_are_encoded_before_the_first_visit_ends_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    launched, finish = Replica.encode_ahead, LocalUpdate.finish

    def noted(replica: Replica, indices: torch.Tensor) -> None:
        story.append("encoded")
        launched(replica, indices)

    def finished(update: LocalUpdate) -> Any:
        story.append("finished")
        reply = finish(update)
        assert update.replica.ahead is None, "nobody asked for it"
        return reply

    monkeypatch.setattr(Replica, "encode_ahead", noted)
    monkeypatch.setattr(LocalUpdate, "finish", finished)
    changes = {"scenario": {"tasks": 2}, "train": {"rounds": 2}}
    ours, _ = run(tmp_path / "a", "replay+feat", {"name": "cuda", "kernels": "torch"}, **changes)
    theirs, _ = run(tmp_path / "b", "replay+feat", {"name": "inprocess"}, **changes)
    assert ours.numbers == pytest.approx(theirs.numbers, rel=1e-3)
    assert story == ["finished"] * 6 + (["encoded"] * 3 + ["finished"] * 3) * 2, (
        "three clients, two tasks of two rounds"
    )


def test_features_that_were_made_ahead_are_void_under_another_model(tmp_path: Path) -> None:
    config = toy_config("replay", engine={"device": "cuda", "name": "cuda", "kernels": "torch"})
    experiment = Experiment(config, toy_dataset())
    experiment.run(RunFolder.create(tmp_path / "run", config, {}), Progress(), ())
    engine = experiment.engine
    assert isinstance(engine, CudaEngine)
    replica, chosen = engine.replicas[0], torch.arange(5, device=engine.device)
    replica.network.eval()
    with torch.no_grad():
        replica.encode_ahead(chosen)
        first = replica.encode(chosen)
        replica.encode_ahead(chosen)
        replica.model.load(0.5 * replica.model.vector.abs())
        second = replica.encode(chosen)
        assert not torch.allclose(first, second)
        assert torch.equal(replica.encode(chosen), second)


def test_out_of_memory_means_fewer_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = run(tmp_path / "a", "fedcbdr+feat", {"name": "cuda", "kernels": "torch"})
    begin, drop, dropped = LocalUpdate.begin, CudaEngine._drop_replica, []

    def scarce(self: LocalUpdate) -> None:
        if not dropped or dropped[-1] > 1:
            raise torch.cuda.OutOfMemoryError("out of memory")
        begin(self)

    monkeypatch.setattr(LocalUpdate, "begin", scarce)
    monkeypatch.setattr(CudaEngine, "_drop_replica", lambda self: (drop(self), dropped.append(len(self.replicas))))
    with pytest.warns(UserWarning, match="going on with 1 replicas"):
        ours, _ = run(tmp_path / "b", "fedcbdr+feat", {"name": "cuda", "kernels": "torch"})
    assert torch.equal(ours.weights, expected.weights)


def test_events_say_the_share_of_the_peak_and_the_plan(tmp_path: Path) -> None:
    run(tmp_path / "run", "fedcbdr+feat", {"name": "cuda", "kernels": "torch"})
    rounds = [e for e in RunFolder.open(tmp_path / "run").events() if e["event"] == "round"]
    assert all(0 < e["share_of_peak"] < 1 for e in rounds)
    assert all(e["clients_at_once"] == 3 and e["bytes_per_client"] > 0 for e in rounds)


def test_the_benchmark_compares_with_the_engine_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CARD:  # in Triton's interpreter, ResNet-18 would take minutes
        look_for_triton(monkeypatch, None)
    data = larger(toy_dataset(Augmentation(1, True, 0.2)))
    monkeypatch.setattr("gpu.SMALLER_RATES", (1e-5,))
    bench = GpuBench(replace(data, train_images=data.train_images[:30], train_labels=data.train_labels[:30]), batch=8)
    bench.agree(rounds=1)
    ours, control = (bench.agreement[f"{name}, lr 1e-05"] for name in ("cuda", "in process, moved by 1e-7"))
    assert ours["distance"] < TOLERANCE
    assert ours["of_the_way"] < 0.1  # one that did not train would be a whole way behind
    assert ours["same_predictions"] >= 0.995
    assert 0 < control["distance"] < 1e-4
    large = [bench.agreement[f"{name}, lr 0.04"]["distance"] for name in ("cuda", "in process, moved by 1e-7")]
    assert large[0] <= 3 * large[1]  # no further than one rounding takes the engine in process


@pytest.mark.parametrize("method", all_methods())
def test_every_method_runs(tmp_path: Path, method: str) -> None:
    changes = {"scenario": {"tasks": 2}, "train": {"rounds": 1}}
    ours, result = run(tmp_path / "run", method, {"name": "cuda", "kernels": "torch"}, **changes)
    assert torch.isfinite(ours.weights).all()
    assert len(result["accuracy_matrix"]) == 2
