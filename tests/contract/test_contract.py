"""What every registered method promises; a new method is held to it by being registered."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfeat.algorithm.client import EXEMPLARS, Client
from fedfeat.algorithm.engine import Lost
from fedfeat.config import Config
from fedfeat.core.payload import Payload, value_bytes
from fedfeat.data.augment import DeviceImages
from fedfeat.federation.progress import Progress
from fedfeat.methods import all_methods
from fedfeat.runs.experiment import Experiment, resume, start
from fedfeat.runs.folder import RunFolder
from toy import NUM_CLASSES, PER_CLASS, scenario_from, toy_config, toy_dataset, untimed, write_toy

# What every client sends; anything else must be declared by the method, in words.
ALWAYS = {"weights", "samples"}
# The parts that most others are made of; make quick holds only these to the contract.
QUICK = ("finetune", "fedlwf", "fedcbdr+feat", "refed+moon", "fedcbdr+scaffold")
RULES = ("median", "trimmed_mean", "krum", "multi_krum", "norm_bounding")
EVENTS = 9  # 3 tasks x (2 rounds + 1 end of task)


def methods() -> Iterator[Any]:
    """Every method as a parameter, so marked that one worker has all tests that share its reference run."""
    for method in all_methods():
        group = pytest.mark.xdist_group(f"contract-{method}")
        yield pytest.param(method, marks=[group] if method in QUICK else [group, pytest.mark.slow])


pytestmark = pytest.mark.parametrize("method", list(methods()))


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


class Reference:
    """One whole run of a method, with every reply and every sample that a client looked at."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.experiment = Experiment(config)
        self.scenario, engine = self.experiment.scenario, self.experiment.engine
        self.images = Watched(engine.train_images)
        self.sent: list[Payload] = []
        engine.train_images = self.images
        make_client, ask = engine.client, engine.ask

        def client(client_id: int) -> Client:
            self.images.current = client_id
            return make_client(client_id)

        def listening(op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
            for client_id, reply in ask(op, requests):
                self.sent.append(reply)
                yield client_id, reply

        engine.client, engine.ask = client, listening  # type: ignore[method-assign]
        self.result = self.experiment.run(self.experiment.new_folder(folder), Progress(), ())


def config_in(folder: Path, method: str) -> Config:
    return toy_config(method, data={"path": str(write_toy(folder / "toy.npz")), "augment": "crop-flip"})


REFERENCES: dict[str, Reference] = {}  # by method; a fixture would be made anew when another method comes between


@pytest.fixture
def reference(method: str, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    if method not in REFERENCES:
        folder = tmp_path_factory.mktemp("reference")
        REFERENCES[method] = Reference(config_in(folder, method), folder / "run")
    return REFERENCES[method]


def hold(method: str, folder: Path) -> None:
    """Hold a method that is not registered, or not for everybody, to all of the contract."""
    reference = Reference(config_in(folder, method), folder / "reference")
    for name, promise in sorted(globals().items()):
        if name.startswith("test_"):
            (folder / name).mkdir()
            known = {"method": method, "reference": reference, "tmp_path": folder / name}
            promise(**{parameter: known[parameter] for parameter in inspect.signature(promise).parameters})


def final_weights(folder: Path) -> bytes:
    loaded = RunFolder.open(folder).checkpoints.load()
    assert loaded is not None
    assert torch.isfinite(loaded[0].weights).all()
    return loaded[0].weights.numpy().tobytes()


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [e for e in RunFolder.open(folder).events() if e["event"] == "round"]


class Interrupted(Exception):
    pass


def interrupting(after: int) -> Callable[[Mapping[str, Any]], None]:
    """Return a listener that stops a run when it hears of its n-th round or end of a task."""
    seen = 0

    def listen(event: Mapping[str, Any]) -> None:
        nonlocal seen
        seen += event["event"] in ("round", "task")
        if seen == after:
            raise Interrupted

    return listen


def test_shapes_of_the_result(method: str, reference: Reference) -> None:
    result = reference.result
    assert [len(row) for row in result["accuracy_matrix"]] == [1, 2, 3]
    assert np.array(result["confusion"]).shape == (NUM_CLASSES, NUM_CLASSES)
    assert np.array(result["confusion"]).sum(axis=1).tolist() == [10] * NUM_CLASSES
    assert 0 <= result["final_accuracy"] <= 100
    assert result["images_per_second"] > 0
    assert json.loads((reference.folder / "result.json").read_text()) == result


def test_first_task_is_learned(method: str, tmp_path: Path) -> None:
    experiment = Experiment(toy_config(method, train={"rounds": 12}), toy_dataset())
    accuracies: list[float] = []

    def listen(event: Mapping[str, Any]) -> None:
        if event["event"] == "task":
            accuracies.append(event["accuracy"])
            raise Interrupted

    with pytest.raises(Interrupted):
        experiment.run(RunFolder.create(tmp_path / "run", experiment.config, {}), Progress(), (listen,))
    assert accuracies[0] > 75


def test_the_same_seed_gives_the_same_bytes_however_often_a_run_is_interrupted(
    method: str, reference: Reference, tmp_path: Path
) -> None:
    """Every process ends one round or task and dies in the next, so each checkpoint is resumed from."""
    folder = tmp_path / "cut"
    with pytest.raises(Interrupted):
        start(reference.config, folder, (interrupting(2),))
    for _ in range(EVENTS - 2):
        with pytest.raises(Interrupted):
            resume(folder, (interrupting(2),))
    result = resume(folder)
    assert untimed(result) == untimed(reference.result)
    assert final_weights(folder) == final_weights(reference.folder)
    events = [[untimed(event) for event in RunFolder.open(f).events()] for f in (folder, reference.folder)]
    assert events[0] == events[1]


def test_another_seed_gives_other_weights(method: str, reference: Reference, tmp_path: Path) -> None:
    """In the second task too: what its first round averages is not what the first seed's did."""
    other = reference.config.model_copy(update={"seed": 8})
    with pytest.raises(Interrupted):
        start(other, tmp_path / "run", (interrupting(4),))
    ours, theirs = (rounds_of(f) for f in (tmp_path / "run", reference.folder))
    assert len(ours) == 3
    assert all(a["losses"] != b["losses"] for a, b in zip(ours, theirs, strict=False))


def test_no_sample_leaves_its_client(method: str, reference: Reference) -> None:
    for client_id, looked in reference.images.looked.items():
        own = {int(i) for t in range(3) for i in reference.scenario.samples(t, client_id)}
        assert looked <= own, f"client {client_id} looked at samples of others"
    keys = {k for reply in reference.sent for k in reply if not k.startswith("loss.")}
    assert keys <= ALWAYS | set(reference.experiment.method.sends)
    raw = reference.images.images.flatten(1).float()
    for reply in reference.sent:
        for value in reply.values():
            if isinstance(value, torch.Tensor) and value.ndim > 1:
                assert value.shape[1] != raw.shape[1] or value.is_floating_point(), "something like images was sent"


def test_the_budget_is_kept_and_exemplars_are_own_and_old(method: str, reference: Reference) -> None:
    total = 0
    for client_id, state in reference.experiment.engine.states.items():
        kept = state.get(EXEMPLARS)
        if not isinstance(kept, torch.Tensor):
            continue
        own = {int(i) for t in range(2) for i in reference.scenario.samples(t, client_id)}
        assert set(kept.tolist()) <= own
        assert len(set(kept.tolist())) == len(kept), "an exemplar was kept twice"
        total += len(kept)
    if reference.experiment.method.replay is None:
        assert total == 0
    elif method.startswith("joint"):
        assert total == 4 * PER_CLASS
    else:
        assert total == 2 * 6


def test_bytes_are_counted(method: str, reference: Reference) -> None:
    result, traffic = reference.result, reference.result["traffic"]
    fresh = Experiment(reference.config)
    expected = sum(value_bytes(fresh.engine.begin_task(task)) * 2 * 3 for task in range(3))  # 2 rounds, 3 clients
    assert traffic["up/train/weights"] == expected
    assert traffic["down/train/weights"] == expected
    assert result["bytes_up"] == sum(v for k, v in traffic.items() if k.startswith("up/"))
    assert result["bytes_down"] == sum(v for k, v in traffic.items() if k.startswith("down/"))
    sent = sum(value_bytes(value) for reply in reference.sent for value in reply.values())
    assert result["bytes_up"] == sent
    in_rounds = sum(v for k, v in traffic.items() if k.startswith("up/train/"))
    assert sum(e["bytes_up"] for e in rounds_of(reference.folder)) == in_rounds


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
    scenario = scenario_from(dataset.train_labels, _dealt())
    config = toy_config(method, scenario={"clients": 4, "min_samples": 0})
    experiment = Experiment(config, dataset, scenario)
    result = experiment.run(RunFolder.create(tmp_path / "run", config, {}), Progress(), ())
    assert np.isfinite(result["final_accuracy"])
    assert final_weights(tmp_path / "run")
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
    assert final_weights(tmp_path / "run")
    rounds = rounds_of(tmp_path / "run")
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
    scenario = scenario_from(dataset.train_labels, nothing)
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


def test_robust_rules_hold_every_number_that_is_joined(method: str, tmp_path: Path) -> None:
    """One of three clients sends everything a hundred thousandfold; each method meets one of the rules."""
    rule = RULES[all_methods().index(method) % len(RULES)]
    train = {"rounds": 1, "local_epochs": 1, "robust": rule, "attackers": 0.4}
    experiment = Experiment(toy_config(method, train=train, scenario={"tasks": 2}), toy_dataset())
    engine, ask = experiment.engine, experiment.engine.ask

    def attacked(op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        for client, reply in ask(op, requests):
            if client == 1 and not isinstance(reply, Lost):
                reply = {k: 1e5 * v if _is_joined(k, v) else v for k, v in reply.items()}
            yield client, reply

    engine.ask = attacked  # type: ignore[method-assign]
    progress = Progress()
    experiment.run(experiment.new_folder(tmp_path / "run"), progress, ())
    numbers = [progress.weights, *progress.tensors.values(), *(torch.tensor(v) for v in progress.numbers.values())]
    assert all(float(value.double().abs().max()) < 1e3 for value in numbers), rule


def _is_joined(name: str, value: object) -> bool:
    """Whether an entry is joined with those of others, and not a number of samples or a row per sample."""
    tensor = isinstance(value, torch.Tensor) and value.is_floating_point() and name != "features"
    return tensor or (isinstance(value, float) and not name.startswith("loss."))
