"""The CUDA engine beside the in-process engine, on an NVIDIA GPU if there is one, on a simulated one elsewhere.

Runs on a simulated GPU are slow, so those without a fault of their own are kept and shared by the tests of this file.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from fedfeat.config.config import Config, make_config
from fedfeat.core.errors import ConfigError
from fedfeat.data.dataset import Augmentation, Dataset
from fedfeat.engines.cuda.arithmetic import Own, Plain
from fedfeat.engines.cuda.engine import CudaEngine
from fedfeat.engines.cuda.local_update import LocalUpdate
from fedfeat.engines.cuda.replica import Replica
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.progress import Progress
from fedfeat.methods.data_free.pool import POOL
from fedfeat.methods.fedlwf import PreviousModel
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from gpu import GpuBench
from simulated_gpu import simulate
from toy import toy_config, toy_dataset

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda-engine")]
GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not GPU and "no_gpu" not in request.keywords:
        simulate(monkeypatch)


def larger(dataset: Dataset) -> Dataset:
    """Every pixel four times: ResNet-18 then ends in a map of 2x2, and BatchNorm can train on one sample.

    Of every four training images one, since ResNet-18 takes its time.
    """
    train, test = (i.repeat(2, axis=1).repeat(2, axis=2) for i in (dataset.train_images[::4], dataset.test_images))
    return replace(dataset, train_images=train, train_labels=dataset.train_labels[::4], test_images=test)


class Run(NamedTuple):
    """A finished run, its engine, and how often captured work of the server was replayed."""

    progress: Progress
    result: dict[str, Any]
    engine: InProcessEngine
    replays: int
    folder: Path


def run(folder: Path, method: str, engine: dict[str, Any], **changes: Any) -> Run:
    """Run two tasks."""
    changes = {"scenario": {"tasks": 2}, **changes}
    config = toy_config(method, engine={"device": "cuda", **engine}, **changes)
    dataset = toy_dataset(Augmentation(1, True, 0.2, config.data.trivial, config.data.cutout))
    experiment = Experiment(config, larger(dataset) if config.model.name == "resnet18" else dataset)
    replays: list[None] = []
    repeat = experiment.engine.repeat

    def counted(work: Any, touched: Any) -> Any:
        replay = repeat(work, touched)
        return lambda: replays.append(replay())

    experiment.engine.repeat = counted  # type: ignore[method-assign]
    progress = Progress()
    result = experiment.run(RunFolder.create(folder, config, {}), progress, ())
    return Run(progress, result, experiment.engine, len(replays), folder)


KEPT: dict[str, Run] = {}


def kept(tmp_path: Path, method: str, engine: dict[str, Any], **changes: Any) -> Run:
    """Return a run that other tests may have made."""
    key = json.dumps([method, engine, changes], sort_keys=True)
    if key not in KEPT:
        KEPT[key] = run(tmp_path / f"run{len(KEPT)}", method, engine, **changes)
    return KEPT[key]


CUDA = {"name": "cuda", "kernels": "torch"}
IN_PROCESS = {"name": "inprocess"}
# Batches of 7 leave remainders of many sizes, of one sample too.
TRAIN = {"batch": 7, "rounds": 2, "local_epochs": 2, "lr": 0.02}


def look_for_triton(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    """Let the engine find this where it looks for Triton."""
    monkeypatch.setattr("fedfeat.engines.cuda.arithmetic.importlib", Mock(**{"util.find_spec.return_value": found}))


def difference(a: Run, b: Run) -> float:
    ours, theirs = a.progress.weights, b.progress.weights
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.no_gpu
@pytest.mark.skipif(GPU, reason="there is a GPU")
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
# Rounding on a GPU is another one; a simulated one rounds as the engine in process does, nearly everywhere.
TOLERANCE = 1e-4 if GPU else 1e-6
needs_gpu = pytest.mark.skipif(not GPU, reason="only on an NVIDIA GPU")
# What these bind to a client's steps differs from update to update: teachers, anchors, importances, control variates,
# draws of synthetic batches.
BINDING = ["fedlwf", "fedewc", "fedssi", "replay+fedprox", "replay+scaffold", "replay+moon", "replay+feat+fedprox"]
BINDING += ["target", "lander", "fedcbdr+etf+balanced+distil"]


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *((m, "small-cnn") for m in PLAIN + BINDING),
        ("fedcbdr+feat", "resnet18"),
        *(pytest.param(m, "resnet18", marks=needs_gpu) for m in PLAIN if m != "fedcbdr+feat"),
    ],
)
def test_full_precision_agrees_with_the_engine_in_process(tmp_path: Path, method: str, model: str) -> None:
    # At a small learning rate, since steps amplify what the engines round differently, those of ResNet-18 most.
    train = TRAIN if model == "small-cnn" else {"batch": 7, "rounds": 1, "local_epochs": 1, "lr": 0.002}
    found = []
    # Where a maximum is undecided, one rounding parts two runs for good: that is one seed in ten. A mistake parts all.
    for seed in (0, 1):
        changes: dict[str, Any] = {"model": {"name": model}, "train": train, "seed": seed}
        changes |= {"run": {"checkpoint_seconds": 3600}} if model == "resnet18" else {}
        ours, theirs = (kept(tmp_path, method, engine, **changes) for engine in (CUDA, IN_PROCESS))
        assert isinstance(ours.engine, CudaEngine)
        assert ours.engine.replicas, "nothing was captured in the second task"
        assert ours.result["traffic"] == theirs.result["traffic"]
        assert abs(ours.result["final_accuracy"] - theirs.result["final_accuracy"]) <= 2
        found.append(difference(ours, theirs))
        if found[-1] < TOLERANCE:
            assert ours.progress.numbers == pytest.approx(theirs.progress.numbers, rel=1e-3, abs=1e-6)
            tables = list(zip(ours.progress.tables, theirs.progress.tables, strict=True))
            assert len(tables) == 2
            for ours_after, theirs_after in tables:
                moved = np.abs(ours_after.plain - theirs_after.plain).sum() / 2
                assert moved <= 0.005 * theirs_after.plain.sum()
            return
    raise AssertionError(f"weights differ by {found}")


def test_batches_may_be_larger_than_what_any_client_holds(tmp_path: Path) -> None:
    train = {"batch": 64, "rounds": 1, "local_epochs": 1}
    ours, theirs = (run(tmp_path / e["name"], "finetune", e, train=train) for e in (CUDA, IN_PROCESS))
    assert difference(ours, theirs) < TOLERANCE


@pytest.mark.interpreter
def test_kernels_of_our_own_agree_with_pytorchs(tmp_path: Path) -> None:
    """With FEAT a step needs all of them, with FedProx a penalty besides."""
    pytest.importorskip("triton")
    method, train = "fedcbdr+feat+fedprox", {"batch": 7, "rounds": 1, "local_epochs": 1, "lr": 0.02}
    found = []
    for seed in (0, 1):
        ours = run(tmp_path / f"{seed}a", method, {"name": "cuda", "kernels": "triton"}, train=train, seed=seed)
        theirs = run(tmp_path / f"{seed}b", method, IN_PROCESS, train=train, seed=seed)
        found.append(difference(ours, theirs))
        if found[-1] < TOLERANCE:
            return
    raise AssertionError(f"weights differ by {found}")


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param({"precision": "fp32", "kernels": "torch"}, marks=needs_gpu),
        {"precision": "bf16", "kernels": "torch"},
        pytest.param({"precision": "bf16", "kernels": "compiled"}, marks=needs_gpu),
        pytest.param({"precision": "bf16", "kernels": "triton"}, marks=needs_gpu),
    ],
)
def test_the_same_run_twice_has_the_same_bytes(tmp_path: Path, engine: dict[str, Any]) -> None:
    runs = [run(tmp_path / str(n), "fedcbdr+feat+distil", {"name": "cuda", **engine}) for n in range(2)]
    assert torch.equal(runs[0].progress.weights, runs[1].progress.weights)


@pytest.mark.parametrize(("method", "replicas"), [("fedcbdr+feat+distil", 2), ("replay+scaffold", 3)])
def test_the_number_of_replicas_changes_nothing(tmp_path: Path, method: str, replicas: int) -> None:
    ours, theirs = (run(tmp_path / str(n), method, {**CUDA, "replicas": n}) for n in (replicas, 1))
    assert torch.equal(ours.progress.weights, theirs.progress.weights)


def test_what_cannot_be_captured_is_trained_client_after_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = PreviousModel.start

    def opaque(self: PreviousModel, client: Any, request: Any) -> Any:
        look = start(self, client, request)
        return look and (lambda images: look(images))

    monkeypatch.setattr(PreviousModel, "start", opaque)
    engine = run(tmp_path / "run", "fedlwf", CUDA).engine
    assert isinstance(engine, CudaEngine)
    assert not engine.replicas


@pytest.mark.parametrize("method", ["target", "lander"])
def test_gradients_go_through_synthetic_batches_in_half_precision(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfeat.engines.cuda.replica.fold", lambda network: network)
    # Without their gradient TARGET ends 0.015 away.
    assert half_precision_difference(tmp_path, method) < (5e-3 if GPU else TOLERANCE)


@pytest.mark.parametrize("method", ["target", "lander"])
def test_clients_of_a_single_step_have_synthetic_batches_to_capture_it_on(tmp_path: Path, method: str) -> None:
    train = {"batch": 64, "rounds": 1, "local_epochs": 1}
    ours, theirs = (run(tmp_path / e["name"], method, e, train=train) for e in (CUDA, IN_PROCESS))
    assert difference(ours, theirs) < TOLERANCE


@pytest.mark.parametrize("method", ["target", "fedlwf"])
def test_teachers_whose_norms_are_folded_agree_in_half_precision(tmp_path: Path, method: str) -> None:
    # With a teacher that knows nothing FedLwF ends 0.003 away, TARGET 0.018.
    assert half_precision_difference(tmp_path, method) < (5e-3 if GPU else 1.5e-3)


def half_precision_difference(folder: Path, method: str) -> float:
    train = {"batch": 7, "rounds": 1, "local_epochs": 1}
    half = {"precision": "bf16"}
    ours, theirs = (run(folder / e["name"], method, {**e, **half}, train=train) for e in (CUDA, IN_PROCESS))
    return difference(ours, theirs)


@pytest.mark.parametrize("method", ["target", "lander"])
def test_the_servers_generator_and_student_are_captured_and_learn_the_same(tmp_path: Path, method: str) -> None:
    changes: dict[str, Any] = {"model": {"name": "small-cnn"}, "train": TRAIN, "seed": 0}
    ours, theirs = (kept(tmp_path, method, engine, **changes) for engine in (CUDA, IN_PROCESS))
    settings = toy_config(method).parts[method].generation
    made = settings.rounds + (settings.warmup if method == "lander" else 0)
    learning = settings.rounds - (settings.warmup if method == "target" else 0)
    assert settings.steps > 1
    assert ours.replays == made * (settings.steps - 1) + learning * (settings.student_steps - 1)
    pools = [r.progress.shared[POOL].float() for r in (ours, theirs)]
    assert (pools[0] - pools[1]).abs().mean() < (2 if GPU else 0.01)


def test_captured_work_of_the_server_shares_its_memory_until_the_next_task() -> None:
    engine = Experiment(toy_config("replay", engine={**CUDA, "device": "cuda"}), toy_dataset()).engine
    reserved, pools = [], []
    for task in range(2):
        engine.begin_task(task)
        counts = [torch.zeros(1 << 24, device=engine.device) for _ in range(2)]
        for number in range(6):
            count = counts[number % 2]
            replay: Any = engine.repeat(partial(lambda count: count.add_(torch.ones_like(count)), count), [count])
            replay()
            reserved.append(torch.cuda.memory_reserved())
            pools.append(replay.__self__.pool())
        assert [float(count.mean()) for count in counts] == [3.0, 3.0]
    assert len(set(pools[:6])) == len(set(pools[6:])) == 1
    assert pools[0] != pools[6]
    assert len(set(reserved[1:6])) == 1


@pytest.mark.parametrize("kernels", ["torch", pytest.param("triton", marks=needs_gpu)])
@pytest.mark.parametrize(
    ("paste", "stronger"), [(0.5, {"trivial": 1.0, "cutout": 0.5}), (0.0, {"trivial": 1.0})], ids=["all", "trivial"]
)
def test_pasted_repeated_and_augmented_images_agree(
    tmp_path: Path, paste: float, stronger: dict[str, float], kernels: str
) -> None:
    train = {**TRAIN, "paste": paste, "repeat_exemplars": 2}
    # With this seed no ReLU is undecided: moving the initial weights by 1e-7 moves the last ones by 2e-7, not by 2e-3.
    changes = {"train": train, "scenario": {"tasks": 2, "budget": 30}, "seed": 1, "data": stronger}
    ours = kept(tmp_path, "replay+distil", {**CUDA, "kernels": kernels}, **changes)
    theirs = kept(tmp_path, "replay+distil", IN_PROCESS, **changes)
    usual = kept(tmp_path, "replay+distil", IN_PROCESS, **{**changes, "train": TRAIN, "data": {}})
    assert difference(ours, theirs) < TOLERANCE
    assert difference(usual, theirs) > 100 * TOLERANCE


@pytest.mark.parametrize("kernels", ["torch", pytest.param("triton", marks=needs_gpu)])
def test_features_before_the_last_activation_agree(tmp_path: Path, kernels: str) -> None:
    changes = {"train": TRAIN, "model": {"name": "small-cnn", "features": "signed"}}
    ours = kept(tmp_path, "replay+etf+distil", {**CUDA, "kernels": kernels}, **changes)
    theirs = kept(tmp_path, "replay+etf+distil", IN_PROCESS, **changes)
    usual = kept(tmp_path, "replay+etf+distil", IN_PROCESS, train=TRAIN)
    assert difference(ours, theirs) < TOLERANCE
    assert difference(usual, theirs) > 100 * TOLERANCE


def test_priors_measured_while_training_agree(tmp_path: Path) -> None:
    online = {"feat": {"egc": {"prior_source": "online"}}}
    ours, theirs = (run(tmp_path / e["name"], "replay+feat", e, **online) for e in (CUDA, IN_PROCESS))
    assert ours.progress.numbers == pytest.approx(theirs.progress.numbers, rel=1e-3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_borrowed_replica_encodes_with_whatever_model_was_loaded(tmp_path: Path, precision: str) -> None:
    engine = run(tmp_path / "run", "replay", {**CUDA, "precision": precision}, train={"rounds": 1}).engine
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


def test_exemplars_are_encoded_before_the_first_update_ends_and_only_once(
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
    ours, theirs = (run(tmp_path / e["name"], "replay+feat", e) for e in (CUDA, IN_PROCESS))
    assert ours.progress.numbers == pytest.approx(theirs.progress.numbers, rel=1e-3)
    assert story == ["finished"] * 6 + (["encoded"] * 3 + ["finished"] * 3) * 2, (
        "three clients, two tasks of two rounds"
    )


def test_features_that_were_made_ahead_are_void_under_another_model(tmp_path: Path) -> None:
    engine = run(tmp_path / "run", "replay", CUDA, train={"rounds": 1}).engine
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
    expected = kept(tmp_path, "fedcbdr+feat", CUDA)
    begin, drop, dropped = LocalUpdate.begin, CudaEngine._drop_replica, []

    def scarce(self: LocalUpdate) -> None:
        if not dropped or dropped[-1] > 1:
            raise torch.cuda.OutOfMemoryError("out of memory")
        begin(self)

    monkeypatch.setattr(LocalUpdate, "begin", scarce)
    monkeypatch.setattr(CudaEngine, "_drop_replica", lambda self: (drop(self), dropped.append(len(self.replicas))))
    with pytest.warns(UserWarning, match="going on with 1 replicas"):
        ours = run(tmp_path / "scarce", "fedcbdr+feat", CUDA)
    assert torch.equal(ours.progress.weights, expected.progress.weights)


def test_events_say_the_share_of_the_peak_and_the_plan(tmp_path: Path) -> None:
    folder = kept(tmp_path, "fedcbdr+feat", CUDA).folder
    rounds = [e for e in RunFolder.open(folder).events() if e["event"] == "round"]
    assert all(0 < e["share_of_peak"] < 1 for e in rounds)
    assert all(e["clients_at_once"] == 3 and e["bytes_per_client"] > 0 for e in rounds)


class SmallBench(GpuBench):
    """The benchmark with a network that a simulated GPU runs in seconds."""

    def config(self, method: str, engine: dict[str, Any], **scenario: Any) -> Config:
        table = super().config(method, engine, **scenario).to_table()
        return make_config({**table, "model": {"name": "small-cnn", "width": 8}})


def test_the_benchmark_compares_with_the_engine_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    if not GPU:  # Triton's interpreter would take minutes
        look_for_triton(monkeypatch, None)
    monkeypatch.setattr("gpu.SMALLER_RATES", (1e-5,))
    bench = SmallBench(toy_dataset(Augmentation(1, True, 0.2)), batch=8)
    bench.agree(rounds=1)
    ours, control = (bench.agreement[f"{name}, lr 1e-05"] for name in ("cuda", "in process, moved by 1e-7"))
    assert ours["distance"] < TOLERANCE
    assert ours["of_the_way"] < 0.1  # one that did not train would be a whole way behind
    assert ours["same_predictions"] >= 0.995
    assert 0 < control["distance"] < 1e-4
    large = [bench.agreement[f"{name}, lr 0.04"]["distance"] for name in ("cuda", "in process, moved by 1e-7")]
    assert large[0] <= 3 * large[1]  # no further than one rounding takes the engine in process
