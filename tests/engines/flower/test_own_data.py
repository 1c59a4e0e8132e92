"""Clients that own their images, in one process: training on what they have, evaluation as counting."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import Message
from local_grid import NODE, LocalGrid
from own_images import OWNERS, TASKS, own_config, write_images, write_owners

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.tables import Tables
from fedfeat.config.config import Config
from fedfeat.core.errors import ConfigError, DataError
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.data.owned import read_own
from fedfeat.engines.flower.client import ClientRun, ClientSettings, FederationClient
from fedfeat.engines.flower.codec import pack, unpack
from fedfeat.engines.flower.messages import PROTOCOL, config_to_send, from_records, to_records
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.evaluation import SENDS
from fedfeat.federation.exchange import TooFewClients
from fedfeat.federation.screen import fault_of
from fedfeat.methods.fedcbdr.fedcbdr import LeverageChoice
from fedfeat.methods.fedcbdr.leverage import row_mask, shared_rotation
from fedfeat.runs.experiment import Experiment, Result, start
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in
from fedfeat.scenario.build import named_classes
from toy import each_part_once
from toy_runs import saved, weights

CLASSES = [name for task in TASKS for name in task]
SCALARS = {"samples", "loss.ce", "loss.tts", "loss.gsa", "loss.first_epoch", "prior_head", "prior_tail", "num_tail"}


def own_client(tmp_path: Path, name: str, path: Path) -> FederationClient:
    return FederationClient(ClientSettings(tmp_path / "sites" / name, name, device="cpu"), path)


def own_nodes(tmp_path: Path) -> dict[int, FederationClient]:
    folders = write_owners(tmp_path / "data")
    return {NODE + k: own_client(tmp_path, name, path) for k, (name, path) in enumerate(folders.items())}


def federated(config: Config, folder: Path, grid: LocalGrid) -> Result:
    experiment = Experiment(config, engine=InProcessEngine)
    RunFolder.create(folder, config, experiment.scenario.to_json(experiment.dataset.class_names))
    return run_in(folder, grid)


def held_back() -> np.ndarray:
    """Test images by owner and class: a fifth of what each owner has."""
    return np.array([[round(0.2 * classes.get(name, 0)) for name in CLASSES] for classes in OWNERS.values()])


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What our loggers say; they may not hand it on to pytest's own handler."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fedfeat").addHandler(handler)
    yield lines
    logging.getLogger("fedfeat").removeHandler(handler)


@pytest.mark.parametrize("method", each_part_once())
def test_every_part_runs_on_clients_own_images(method: str, tmp_path: Path) -> None:
    config = own_config(method, train={"rounds": 1, "local_epochs": 1})
    result = federated(config, tmp_path / "run", LocalGrid(own_nodes(tmp_path)))
    assert result["rounds_with_fewer_clients"] == []
    assert np.sum(result["confusion"], axis=1).tolist() == held_back().sum(axis=0).tolist()
    expected = [[held_back()[:, :2].sum()], [held_back()[:, :2].sum(), held_back()[:, 2:].sum()]]
    assert [len(row) for row in result["accuracy_matrix"]] == [len(row) for row in expected]


@pytest.mark.parametrize("method", ["fedcbdr+feat", "herding+feat"])
def test_what_was_learned_and_what_left(method: str, tmp_path: Path) -> None:
    result = federated(own_config(method), tmp_path / "run", LocalGrid(own_nodes(tmp_path)))
    assert result["accuracy_matrix"][0][0] >= 90
    assert min(result["accuracy_matrix"][1]) >= 90
    rounds = [e for e in RunFolder.open(tmp_path / "run").events() if e["event"] == "round"]
    # Of task 1 the third client has nothing: it is asked, replies, and does not train.
    trained = [{"0": 16, "1": 24}, {"0": 12, "1": 16, "2": 20}]
    assert [sorted(e["client_losses"]) for e in rounds] == [sorted(trained[0])] * 4 + [sorted(trained[1])] * 4
    assert {e["replied"] for e in rounds} == {3}
    assert rounds[0]["samples"] == sum(trained[0].values())
    up = {tuple(k.split("/")[1:]): size for k, size in result["traffic"].items() if k.startswith("up/")}
    allowed = {("train", name) for name in SCALARS | {"weights"}} | {("evaluate", "tables"), ("evaluate", "energies")}
    if method.startswith("fedcbdr"):
        allowed |= {("masked_features", "features"), ("leverage", "mass")}
        assert up[("masked_features", "features")] == sum(trained[0].values()) * 16 * 4
    assert up.keys() <= allowed
    assert up[("evaluate", "tables")] == 3 * 2 * (2 * 2 + 4 * 4) * 8
    model = len(saved(tmp_path / "run").weights) * 4
    assert up[("train", "weights")] == (2 + 3) * 4 * model


def test_a_client_that_leaves_takes_its_test_images_along(tmp_path: Path) -> None:
    config = own_config("replay", train={"rounds": 1, "local_epochs": 1}, scenario={"leaves": {"1": 2}})
    result = federated(config, tmp_path / "run", LocalGrid(own_nodes(tmp_path)))
    assert np.sum(result["confusion"], axis=1).tolist() == (held_back()[0] + held_back()[2]).tolist()
    tasks = [e for e in RunFolder.open(tmp_path / "run").events() if e["event"] == "task"]
    assert [e["exemplars"] for e in tasks] == [8, 4]  # of twelve, client 2 has no image to keep; then client 1 is gone


def test_tables_add_up_to_those_of_all_test_images_together(tmp_path: Path) -> None:
    config = own_config("herding+feat")
    result = federated(config, tmp_path / "run", LocalGrid(own_nodes(tmp_path)))
    names = named_classes(config.scenario)
    parts = [read_own(tmp_path / "data" / name, config.data, names, config.seed) for name in OWNERS]
    pooled = replace(
        parts[0],
        test_images=np.concatenate([p.test_images for p in parts]),
        test_labels=np.concatenate([p.test_labels for p in parts]),
    )
    experiment = Experiment(config, engine=InProcessEngine)
    engine = InProcessEngine(config, pooled, experiment.scenario, experiment.method)
    engine.begin_task(1)
    progress = saved(tmp_path / "run")
    tables: Tables = engine.evaluate(progress.weights, progress.known)
    assert result["confusion"] == tables.corrected.tolist()
    assert result["confusion_uncorrected"] == tables.plain.tolist()
    event = [e for e in RunFolder.open(tmp_path / "run").events() if e["event"] == "task"][-1]
    assert tables.energies is not None
    assert event["energies"] == tables.energies.record()


def test_a_repeated_run_has_the_same_bytes(tmp_path: Path) -> None:
    config = own_config("herding+feat", train={"rounds": 2})
    for name in ("one", "two"):
        federated(config, tmp_path / name / "run", LocalGrid(own_nodes(tmp_path / name)))
    assert weights(tmp_path / "one" / "run") == weights(tmp_path / "two" / "run")


def test_a_client_that_fails_in_evaluation_is_left_out(tmp_path: Path) -> None:
    def fault(node: int, reply: Message) -> Message | None:
        _, packed = from_records(reply.content)
        return None if node == NODE and '"tables"' in packed.manifest else reply

    config = own_config("herding+feat", federation={"deadline": 0.2}, train={"rounds": 1})
    result = federated(config, tmp_path / "run", LocalGrid(own_nodes(tmp_path), fault))
    assert np.sum(result["confusion"], axis=1).tolist() == held_back()[1:].sum(axis=0).tolist()
    fewer = [(e["task"], e["op"], e["clients"], e["replied"], list(e["missing"])) for e in _fewer(result)]
    assert fewer == [(1, "evaluate", 3, 2, ["0"]), (2, "evaluate", 3, 2, ["0"])]


def test_a_client_that_counts_below_zero_is_left_out(tmp_path: Path) -> None:
    def fault(node: int, reply: Message) -> Message:
        header, packed = from_records(reply.content)
        if node == NODE and '"tables"' in packed.manifest:
            tables = -tensor_of(unpack(packed), "tables")
            reply.content = to_records(header, pack({**unpack(packed), "tables": tables}))
        return reply

    config = own_config("finetune", train={"rounds": 1})
    result = federated(config, tmp_path / "run", LocalGrid(own_nodes(tmp_path), fault))
    assert np.sum(result["confusion"], axis=1).tolist() == held_back()[1:].sum(axis=0).tolist()
    faults = [(e["op"], e["failed"]["0"].partition(", got")[0]) for e in _fewer(result)]
    assert faults == [("evaluate", "tables: expected values of at least 0")] * 2


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"tables": torch.zeros(2, 3, 4, dtype=torch.long)}, "tables: expected whole numbers of shape [2, 4, 4]"),
        ({"tables": torch.zeros(2, 4, 4)}, "tables: expected whole numbers"),
        ({"tables": 3}, "tables: expected whole numbers"),
        ({"tables": torch.full((2, 4, 4), -1)}, "tables: expected values of at least 0, got -1"),
        ({"energies": torch.full((2, 2, 100), -1)}, "energies: expected values of at least 0, got -1"),
        (
            {"energies": torch.ones(2, 2, 5, dtype=torch.long)},
            "energies: expected 64 bits [2, 2, 100], got int64 [2, 2, 5]",
        ),
        ({"energies": 0.0}, "energies: missing"),
    ],
)
def test_tables_that_cannot_be_added_are_refused(change: dict[str, Any], fault: str | None) -> None:
    request: dict[str, Any] = {"predictions": 2, "classes": 4, "energies": 1}
    reply = {"tables": torch.ones(2, 4, 4, dtype=torch.long), "energies": torch.ones(2, 2, 100, dtype=torch.long)}
    found = fault_of("evaluate", request, {**reply, **change}, SENDS, {"C": 4, "n": 100})
    assert (found or "").startswith(fault or "")
    assert (found is None) == (fault is None)


def test_classes_that_do_not_meet_are_named_once(tmp_path: Path, said: list[str]) -> None:
    config = own_config("finetune", train={"rounds": 1}, scenario={"task_names": [*TASKS, ["unicorn", "yeti"]]})
    result = federated(config, tmp_path / "run", LocalGrid(own_nodes(tmp_path)))
    assert len(result["accuracy_matrix"]) == 3
    (unused,) = [line for line in said if "not used" in line]
    assert unused.endswith("clinic-b: not used, since no task of this federation names them: zebra")
    missing = [line for line in said if "has an image of" in line]
    assert missing == ["no client that is connected has an image of: unicorn, yeti"]


def test_hello_tells_names_of_classes_and_nothing_of_images(tmp_path: Path) -> None:
    config = own_config("finetune")
    greeting = {"protocol": PROTOCOL, "run": "r1", "config": config_to_send(config)}
    hellos = [client.hello(greeting) for client in own_nodes(tmp_path).values()]
    assert not any("machine" in h for h in hellos)
    assert [h["classes"] for h in hellos] == [["cat", "ship"], ["cat", "dog", "truck"], ["ship", "truck"]]
    # What all of them agree on with the server does not depend on anybody's images.
    assert {h["data"] for h in hellos} == {Experiment(config, engine=InProcessEngine).fingerprint}


def test_names_of_private_files_stay_at_the_client(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_owners(tmp_path / "data")["clinic-a"]
    greeting = {"protocol": PROTOCOL, "run": "r1", "config": config_to_send(own_config("finetune"))}
    client = own_client(tmp_path, "a", data)
    client.hello(greeting)
    for error in (DataError("/srv/jane-doe.png: broken"), OSError("/srv/jane-doe.png: gone")):
        told = {"failed": f"{type(error).__name__}: see the client's log"}
        monkeypatch.setattr(ClientRun, "answer", Mock(side_effect=error))
        assert client.ask({"run": "r1", "op": "train"}, pack({}))[0] == told
        assert any("train failed" in line and str(error) in line for line in said)
    (data / "cat" / "john-doe.png").write_bytes(b"not an image")
    hello = own_client(tmp_path, "a", data).hello(greeting)
    assert hello == {"name": "a", "refused": "DataError: see the client's log"}
    assert any("john-doe.png" in line for line in said)
    monkeypatch.setattr(
        "fedfeat.engines.flower.client.open_data", Mock(side_effect=PermissionError("/srv/jane-doe.png"))
    )
    assert own_client(tmp_path, "a", data).hello(greeting)["refused"] == "PermissionError: see the client's log"


def test_a_server_of_another_protocol_is_told_so(tmp_path: Path) -> None:
    hello = own_client(tmp_path, "a", tmp_path).hello({"protocol": PROTOCOL + 1, "run": "r1"})
    assert "install the same version of fedfeat on both" in hello["refused"]


def test_images_may_change_only_in_classes_still_to_come(tmp_path: Path, said: list[str]) -> None:
    data = write_owners(tmp_path / "data")["clinic-a"]
    config = own_config("herding+feat", scenario={"clients": 1}, train={"rounds": 1})
    grid = LocalGrid({NODE: own_client(tmp_path, "a", data)})
    run = _first_task_only(config, tmp_path / "run", grid)
    greeting = {"protocol": PROTOCOL, "run": run, "config": config_to_send(config)}
    write_images(data, "ship", 5, seed=1)
    assert "refused" not in own_client(tmp_path, "a", data).hello(greeting)
    write_images(data, "cat", 1, seed=1)
    assert own_client(tmp_path, "a", data).hello(greeting)["refused"] == "DataError: see the client's log"
    assert any("the images of cat are not those that this client began the run with" in line for line in said)


def test_added_images_move_no_index_of_earlier_classes(tmp_path: Path) -> None:
    data = write_owners(tmp_path / "data")["clinic-a"]
    config = own_config("herding+feat")
    before = read_own(data, config.data, CLASSES, config.seed)
    write_images(data, "ship", 7, seed=1)
    after = read_own(data, config.data, CLASSES, config.seed)
    cats = int((before.train_labels == 0).sum())
    assert cats == 16
    assert (after.train_labels[:cats] == 0).all()
    assert np.array_equal(before.train_images[:cats], after.train_images[:cats])
    assert len(after.train_labels) + len(after.test_labels) == 20 + 15 + 7


def test_the_server_cannot_undo_a_clients_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are mixed by the client's own secret: with the run's seed alone they cannot be put back."""
    seen: list[tuple[Client, torch.Tensor]] = []
    original = LeverageChoice.masked_features

    def listen(self: LeverageChoice, client: Client, request: Payload) -> Payload:
        reply = original(self, client, request)
        seen.append((client, tensor_of(reply, "features").double()))
        return reply

    monkeypatch.setattr(LeverageChoice, "masked_features", listen)
    config = own_config("fedcbdr", scenario={"clients": 1}, train={"rounds": 1})
    data = write_owners(tmp_path / "data")["clinic-a"]
    federated(config, tmp_path / "run", LocalGrid({NODE: own_client(tmp_path, "a", data)}))
    ((client, sent),) = seen
    rotated = sent @ shared_rotation(config.seed, 0, sent.shape[1]).T
    assert client.secret is not None
    # Features come out of a ReLU: the true ones are not negative, a wrong guess mixes signs.
    assert row_mask(client.secret, 0, 0, len(sent), block=1024).undo(rotated).min() > -1e-4
    assert row_mask(config.seed, 0, 0, len(sent), block=1024).undo(rotated).min() < -1e-2


def test_without_processes_own_data_is_refused_in_one_sentence(tmp_path: Path) -> None:
    config = own_config("finetune", engine={"name": "inprocess"})
    with pytest.raises(ConfigError, match="those that own their data, are processes of their own"):
        start(config, tmp_path / "run")


def _fewer(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result["rounds_with_fewer_clients"]
    return found


def _first_task_only(config: Config, folder: Path, grid: LocalGrid) -> str:
    """Run until task 1 was evaluated, then lose the only client; return the run's name."""
    client = grid.nodes[NODE]

    def leave(node: int, reply: Message) -> Message:
        if '"tables"' in from_records(reply.content)[1].manifest:
            grid.nodes.clear()
        return reply

    grid.fault = leave
    hasty = config.federation.model_copy(update={"deadline": 0.1, "wait": 0.1})
    with pytest.raises(TooFewClients):
        federated(config.model_copy(update={"federation": hasty}), folder, grid)
    assert client.run is not None
    return client.run.name
