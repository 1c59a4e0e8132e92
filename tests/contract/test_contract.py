"""What every registered method promises; a new method is held to it by being registered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfeat.algorithm.client import EXEMPLARS, Client
from fedfeat.algorithm.engine import Lost
from fedfeat.core.payload import Payload, value_bytes
from fedfeat.data.augment import DeviceImages
from fedfeat.federation.progress import Progress
from fedfeat.methods import all_methods
from fedfeat.runs.experiment import Experiment, Result, resume, start
from fedfeat.runs.folder import RunFolder
from toy import NUM_CLASSES, PER_CLASS, hand_dealt, toy_config, toy_dataset, untimed, write_toy

METHODS = all_methods()
# What every client sends; anything else must be declared by the method, in words.
ALWAYS = {"weights", "samples"}

pytestmark = pytest.mark.parametrize("method", METHODS)


def run_toy(method: str, folder: Path, **changes: Any) -> tuple[Experiment, Result]:
    experiment = Experiment(toy_config(method, **changes), toy_dataset())
    run = RunFolder.create(folder, experiment.config, {})
    return experiment, experiment.run(run, Progress(), ())


def final_weights(folder: Path) -> bytes:
    loaded = RunFolder.open(folder).checkpoints.load()
    assert loaded is not None
    return loaded[0].weights.numpy().tobytes()


def test_shapes_of_the_result(method: str, tmp_path: Path) -> None:
    _, result = run_toy(method, tmp_path / "run")
    assert [len(row) for row in result["accuracy_matrix"]] == [1, 2, 3]
    assert np.array(result["confusion"]).shape == (NUM_CLASSES, NUM_CLASSES)
    assert np.array(result["confusion"]).sum(axis=1).tolist() == [10] * NUM_CLASSES
    assert 0 <= result["final_accuracy"] <= 100
    assert result["images_per_second"] > 0
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result


def test_first_task_is_learned(method: str, tmp_path: Path) -> None:
    _, result = run_toy(method, tmp_path / "run", train={"rounds": 12})
    assert result["accuracy_after_task"][0] > 75


def test_the_same_seed_gives_the_same_bytes(method: str, tmp_path: Path) -> None:
    _, first = run_toy(method, tmp_path / "a")
    _, second = run_toy(method, tmp_path / "b")
    assert untimed(first) == untimed(second)
    assert final_weights(tmp_path / "a") == final_weights(tmp_path / "b")


def test_another_seed_gives_other_weights(method: str, tmp_path: Path) -> None:
    run_toy(method, tmp_path / "a")
    run_toy(method, tmp_path / "b", seed=8)
    assert final_weights(tmp_path / "a") != final_weights(tmp_path / "b")


class Interrupted(Exception):
    pass


def test_a_resumed_run_has_the_same_bytes(method: str, tmp_path: Path) -> None:
    write_toy(tmp_path / "toy.npz")
    config = toy_config(method, data={"path": str(tmp_path / "toy.npz")})
    whole = start(config, tmp_path / "whole")
    for after in range(1, 9):  # 3 tasks x (2 rounds + 1 end of task), interrupted after each event but the last
        seen = 0

        def interrupt(event: Mapping[str, Any], after: int = after) -> None:
            nonlocal seen
            seen += event["event"] in ("round", "task")
            if seen == after:
                raise Interrupted

        folder = tmp_path / f"cut{after}"
        with pytest.raises(Interrupted):
            start(config, folder, (interrupt,))
        result = resume(folder)
        assert untimed(result) == untimed(whole), f"interrupted after event {after}"
        assert final_weights(folder) == final_weights(tmp_path / "whole")
        assert _untimed_events(folder) == _untimed_events(tmp_path / "whole")


def _untimed_events(folder: Path) -> list[dict[str, Any]]:
    return [untimed(event) for event in RunFolder.open(folder).events()]


class Watched(DeviceImages):
    """Notes which samples each client looks at."""

    def __init__(self, images: DeviceImages) -> None:
        self.__dict__.update(images.__dict__)
        self.looked: dict[int, set[int]] = {}
        self.current = -1

    def _note(self, indices: torch.Tensor) -> None:
        self.looked.setdefault(self.current, set()).update(indices.tolist())

    def plain(self, indices: torch.Tensor) -> torch.Tensor:
        self._note(indices)
        return super().plain(indices)

    def augmented(self, indices: torch.Tensor, *args: Any) -> torch.Tensor:
        self._note(indices)
        return super().augmented(indices, *args)


def test_no_sample_leaves_its_client(method: str, tmp_path: Path) -> None:
    experiment = Experiment(toy_config(method), toy_dataset())
    engine, scenario = experiment.engine, experiment.scenario
    images = Watched(engine.train_images)
    engine.train_images = images
    make_client, ask = engine.client, engine.ask
    sent: list[Payload] = []

    def client(client_id: int) -> Client:
        images.current = client_id
        return make_client(client_id)

    def listening(op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        for client_id, reply in ask(op, requests):
            sent.append(reply)
            yield client_id, reply

    engine.client, engine.ask = client, listening  # type: ignore[method-assign]
    experiment.run(RunFolder.create(tmp_path / "run", experiment.config, {}), Progress(), ())
    for client_id, looked in images.looked.items():
        own = {int(i) for t in range(3) for i in scenario.samples(t, client_id)}
        assert looked <= own, f"client {client_id} looked at samples of others"
    keys = {k for reply in sent for k in reply if not k.startswith("loss.")}
    assert keys <= ALWAYS | set(experiment.method.sends)
    raw = engine.train_images.images.flatten(1).float()
    for reply in sent:
        for value in reply.values():
            if isinstance(value, torch.Tensor) and value.ndim > 1:
                assert value.shape[1] != raw.shape[1] or value.is_floating_point(), "something like images was sent"


def test_the_budget_is_kept_and_exemplars_are_own_and_old(method: str, tmp_path: Path) -> None:
    experiment, _ = run_toy(method, tmp_path / "run")
    scenario = experiment.scenario
    total = 0
    for client_id, state in experiment.engine.states.items():
        kept = state.get(EXEMPLARS)
        if not isinstance(kept, torch.Tensor):
            continue
        own = {int(i) for t in range(2) for i in scenario.samples(t, client_id)}
        assert set(kept.tolist()) <= own
        assert len(set(kept.tolist())) == len(kept), "an exemplar was kept twice"
        total += len(kept)
    if experiment.method.replay is None:
        assert total == 0
    elif method.startswith("joint"):
        assert total == 4 * PER_CLASS
    else:
        assert total == 2 * 6


def test_bytes_are_counted(method: str, tmp_path: Path) -> None:
    _, result = run_toy(method, tmp_path / "run")
    traffic = result["traffic"]
    per_task = []
    fresh = Experiment(toy_config(method), toy_dataset())
    for task in range(3):
        vector = fresh.engine.begin_task(task)
        per_task.append(value_bytes(vector))
    expected = sum(size * 2 * 3 for size in per_task)  # 2 rounds, 3 clients
    assert traffic["up/train/weights"] == expected
    assert traffic["down/train/weights"] == expected
    assert result["bytes_up"] == sum(v for k, v in traffic.items() if k.startswith("up/"))
    assert result["bytes_down"] == sum(v for k, v in traffic.items() if k.startswith("down/"))
    rounds = [e for e in RunFolder.open(tmp_path / "run").events() if e["event"] == "round"]
    in_rounds = sum(v for k, v in traffic.items() if k.startswith("up/train/"))
    assert sum(e["bytes_up"] for e in rounds) == in_rounds


def _dealt() -> list[list[list[int]]]:
    def samples(c: int, count: int) -> list[int]:
        return list(range(c * PER_CLASS, c * PER_CLASS + count))

    return [
        # one sample | one class | both classes | nothing at all
        [samples(0, 1), samples(1, 12), samples(0, 20)[1:] + samples(1, 20)[12:], []],
        # no old data and new ones | still nothing | one sample | both classes
        [[], [], samples(2, 1), samples(2, 20)[1:] + samples(3, 20)],
        [samples(4, 9), samples(5, 1), [], samples(4, 20)[9:]],
    ]


def test_odd_clients(method: str, tmp_path: Path) -> None:
    dataset = toy_dataset()
    scenario = hand_dealt(dataset.train_labels, _dealt())
    config = toy_config(method, scenario={"clients": 4, "min_samples": 0})
    experiment = Experiment(config, dataset, scenario)
    result = experiment.run(RunFolder.create(tmp_path / "run", config, {}), Progress(), ())
    assert np.isfinite(result["final_accuracy"])
    weights = RunFolder.open(tmp_path / "run").checkpoints.load()
    assert weights is not None
    assert torch.isfinite(weights[0].weights).all()
    for event in RunFolder.open(tmp_path / "run").events():
        assert all(np.isfinite(v) for v in event.get("losses", {}).values())


def test_a_client_that_drops_out_is_left_out(method: str, tmp_path: Path) -> None:
    """Client 0 is missing in every first round, client 1 fails in every later one and at every task's end."""
    experiment = Experiment(toy_config(method), toy_dataset())
    engine = experiment.engine
    ask = engine.ask

    def unreliable(op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        lost = {0: Lost("missing", "asleep")} if (op, engine.round) == ("train", 0) else {1: Lost("failed", "broken")}
        yield from ((k, v) for k, v in lost.items() if k in requests)
        yield from ask(op, {k: v for k, v in requests.items() if k not in lost})

    engine.ask = unreliable  # type: ignore[method-assign]
    result = experiment.run(RunFolder.create(tmp_path / "run", experiment.config, {}), Progress(), ())
    loaded = RunFolder.open(tmp_path / "run").checkpoints.load()
    assert loaded is not None
    assert torch.isfinite(loaded[0].weights).all()
    rounds = [e for e in RunFolder.open(tmp_path / "run").events() if e["event"] == "round"]
    assert [(e["clients"], e["replied"]) for e in rounds] == [(3, 2)] * 6
    assert [e["missing"] for e in rounds] == [{"0": "asleep"}, {}] * 3
    assert [e["failed"] for e in rounds] == [{}, {"1": "broken"}] * 3
    fewer = result["rounds_with_fewer_clients"]
    assert [(f["task"], f["round"]) for f in fewer if f["op"] == "train"] == [(t, r) for t in (1, 2, 3) for r in (1, 2)]
    assert all(f["failed"] == {"1": "broken"} for f in fewer if f["op"] != "train")
    if experiment.method.replay is not None:
        assert EXEMPLARS not in engine.states.get(1, {}), "a client that dropped out kept something"
        assert engine.exemplars() > 0


def test_a_round_in_which_nobody_has_data_changes_nothing(method: str, tmp_path: Path) -> None:
    dataset = toy_dataset()
    nothing: list[list[list[int]]] = [[[], []]] * 3
    scenario = hand_dealt(dataset.train_labels, nothing)
    config = toy_config(method, scenario={"clients": 2, "min_samples": 0})
    experiment = Experiment(config, dataset, scenario)
    before = Experiment(config, dataset, scenario).engine.begin_task(0)
    experiment.run(RunFolder.create(tmp_path / "run", config, {}), Progress(), ())
    loaded = RunFolder.open(tmp_path / "run").checkpoints.load()
    assert loaded is not None
    backbone = sum(p.numel() for p in experiment.engine.network.backbone.parameters())
    assert torch.equal(loaded[0].weights[:backbone], before[:backbone])


def test_all_methods_share_split_and_initial_weights(method: str, tmp_path: Path) -> None:
    ours = Experiment(toy_config(method), toy_dataset())
    reference = Experiment(toy_config("finetune"), toy_dataset())
    for task in range(3):
        for client in range(3):
            assert np.array_equal(ours.scenario.samples(task, client), reference.scenario.samples(task, client))
    pairs = zip(ours.engine.network.backbone.parameters(), reference.engine.network.backbone.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
