"""Masked sums over Flower's messages: the same bytes as in simulation, and nothing of a single client in any reply."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dropouts import VICTIM, config_for, in_process_without, small
from flwr.app import Message
from local_grid import NODE, LocalGrid, local_nodes
from own_images import OWNERS, own_config, write_owners
from test_resume import Killed, WatchedGrid

from fedfeat.algorithm.engine import Lost
from fedfeat.core.payload import tensor_of
from fedfeat.engines.flower.client import ClientSettings, FederationClient
from fedfeat.engines.flower.codec import pack, unpack
from fedfeat.engines.flower.messages import PROTOCOL, config_to_send, from_records
from fedfeat.engines.flower.policy import ClientPolicy
from fedfeat.runs import deploy
from fedfeat.runs.experiment import start
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in
from toy import toy_config
from toy_runs import weights

SECURE = {"privacy": {"secure_aggregation": True, "fewest_clients": 2}}
MASKED = {torch.int32, torch.int64, torch.uint8}  # what may leave: residues, keys and shares


def run_here(tmp_path: Path, config: Any, **grid: Any) -> dict[str, Any]:
    RunFolder.create(tmp_path / "run", config, {})
    return run_in(tmp_path / "run", LocalGrid(local_nodes(tmp_path, tmp_path / "toy.npz"), **grid))


def sent_by_clients(tmp_path: Path, names: Any) -> dict[str, int]:
    run = json.loads((tmp_path / "run" / "federation.json").read_text())["run"]
    sent: Counter[str] = Counter()
    for name in names:
        sent.update(json.loads((tmp_path / name / run / "store" / "journal.json").read_text())["sent"])
    return dict(sent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("replay+feat", {"privacy": {"secure_aggregation": True, "clip": 0.5}}),
        (
            "replay+etf+balanced+distil",
            {"train": {"aggregation": "samples"}, "privacy": {**SECURE["privacy"], "bits": 64}},
        ),
        ("analytic", SECURE),
    ],
    ids=["clip", "by samples", "Gram matrices"],
)
def test_same_bytes_as_in_process(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    kinds: set[Any] = set()

    def look(node: int, reply: Message) -> Message:
        payload = unpack(from_records(reply.content)[1])
        kinds.update(v.dtype if isinstance(v, torch.Tensor) else type(v) for v in payload.values())
        return reply

    there = run_here(tmp_path, config_for(tmp_path, method, changes), fault=look)
    here = start(toy_config(method, **{**small(tmp_path), **changes}), tmp_path / "here")
    assert weights(tmp_path / "run") == weights(tmp_path / "here")
    assert there["accuracy_matrix"] == here["accuracy_matrix"]
    assert there["privacy"] == here["privacy"]
    assert there["rounds_with_fewer_clients"] == []
    assert kinds <= MASKED
    up = {k.removeprefix("up/"): v for k, v in there["traffic"].items() if k.startswith("up/")}
    assert sent_by_clients(tmp_path, ["client0", "client1", "client2"]) == up
    assert here["traffic"].items() <= there["traffic"].items(), "masks cost nothing; keys and shares come on top"


@pytest.mark.slow
def test_a_client_lost_while_it_trains_is_left_out_as_in_process(tmp_path: Path) -> None:
    lost = {(0, 1), (1, 0)}
    config = config_for(tmp_path, "replay+feat", SECURE)
    RunFolder.create(tmp_path / "run", config, {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")

    def late(header: Any) -> bool:
        return (header["op"], header["client"]) != ("train", VICTIM) or (header["task"], header["round"]) not in lost

    result = run_in(tmp_path / "run", WatchedGrid(nodes, after=late))
    reasons = {where: Lost("missing", "no reply within 0.2 s") for where in lost}
    expected = in_process_without(tmp_path, reasons, "replay+feat", **SECURE)
    assert weights(tmp_path / "run") == expected[1]
    assert result["rounds_with_fewer_clients"] == expected[0]["rounds_with_fewer_clients"]
    assert len(result["rounds_with_fewer_clients"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["train.keys", "train", "train.unmask", "keep_random"])
def test_a_server_that_was_killed_goes_on_with_clients_that_were_started_again(phase: str, tmp_path: Path) -> None:
    """Killed after a client worked and before the server heard of it."""
    config = config_for(tmp_path, "replay", SECURE)
    RunFolder.create(tmp_path / "run", config, {})
    left = [1]

    def kill(header: Any) -> bool:
        if (header["op"], header["task"], header["client"]) == (phase, 0, VICTIM) and left and header["round"] == 1:
            left.pop()
            raise Killed
        return True

    def clients() -> dict[int, FederationClient]:
        """Each answers every operation of a round once, and the same request again."""
        nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
        once = {n: replace(c.settings, policy=ClientPolicy(one_answer=True)) for n, c in nodes.items()}
        return {n: FederationClient(once[n], c.data) for n, c in nodes.items()}

    with pytest.raises(Killed):
        run_in(tmp_path / "run", WatchedGrid(clients(), after=kill))
    result = run_in(tmp_path / "run", LocalGrid(clients()))
    here = start(toy_config("replay", **{**small(tmp_path), **SECURE}), tmp_path / "here")
    assert not left
    assert weights(tmp_path / "run") == weights(tmp_path / "here")
    assert result["accuracy_matrix"] == here["accuracy_matrix"]
    assert result["rounds_with_fewer_clients"] == []


@pytest.mark.slow
def test_a_client_whose_disk_was_lost_is_told_everything_again(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config_for(tmp_path, "fedlwf", SECURE), {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    lost: list[int] = []

    def lose(header: Any) -> None:
        if (header["task"], header["round"], header["op"]) == (1, 1, "train.keys") and not lost:
            lost.append(header["client"])
            shutil.rmtree(tmp_path / f"client{header['client']}" / header["run"] / "store")
            node = next(n for n, c in nodes.items() if c.settings.client == header["client"])
            nodes[node] = local_nodes(tmp_path, tmp_path / "toy.npz")[node]

    result = run_in(tmp_path / "run", WatchedGrid(nodes, before=lose, after=lambda header: True))
    assert [loss["client"] for loss in result["lost_states"]] == lost
    assert result["rounds_with_fewer_clients"] == []


STRICT = ClientPolicy(
    own_data=True,
    clip=1.0,
    noise=0.5,
    one_answer=True,
    secure_aggregation=True,
    fewest_clients=3,
    operations=("train", "evaluate"),
)
PRIVATE = {"model": {"norm": "group"}, "train": {"rounds": 2}}
BLURRED = {"secure_aggregation": True, "clip": 1.0, "noise": 0.5}


def owners_with(tmp_path: Path, policy: ClientPolicy) -> dict[int, FederationClient]:
    data = write_owners(tmp_path / "data")
    return {
        NODE + k: FederationClient(ClientSettings(tmp_path / name, name, device="cpu", policy=policy), path)
        for k, (name, path) in enumerate(data.items())
    }


@pytest.mark.slow
def test_owners_with_strict_policies_learn_under_masks_and_noise(tmp_path: Path) -> None:
    """One of them has nothing of the first task; their tables of test images are added up under masks too."""
    config = own_config("finetune", privacy=BLURRED, **PRIVATE)
    deploy.prepare_run(config, tmp_path / "run")
    result = run_in(tmp_path / "run", LocalGrid(owners_with(tmp_path, STRICT)))
    assert result["rounds_with_fewer_clients"] == []
    assert torch.tensor(result["confusion"]).sum(dim=1).tolist() == [6, 4, 5, 7]
    assert result["privacy"]["secure_aggregation"] is True
    assert result["privacy"]["summed"] == ["evaluate", "train"]
    up = {k.removeprefix("up/"): v for k, v in result["traffic"].items() if k.startswith("up/")}
    assert sent_by_clients(tmp_path, OWNERS) == up


@pytest.mark.parametrize(
    ("privacy", "named"),
    [
        ({"clip": 1.0, "noise": 0.5}, "policy: replies leave in masked sums alone"),
        ({**BLURRED, "fewest_clients": 2}, "policy: a masked sum is of 3 clients or more"),
    ],
)
def test_a_run_without_masks_or_with_too_few_is_refused(privacy: dict[str, Any], named: str, tmp_path: Path) -> None:
    client = owners_with(tmp_path, STRICT)[NODE]
    config = own_config("finetune", privacy=privacy, **PRIVATE)
    hello = client.hello({"protocol": PROTOCOL, "run": "r1", "config": config_to_send(config)})
    assert hello["refused"].startswith(named)
    config = own_config("finetune", privacy=BLURRED, **PRIVATE)
    assert "refused" not in client.hello({"protocol": PROTOCOL, "run": "r1", "config": config_to_send(config)})


def test_a_server_learns_why_a_phase_is_refused_and_gets_nothing(tmp_path: Path) -> None:
    client = owners_with(tmp_path, STRICT)[NODE]
    config = own_config("finetune", privacy=BLURRED, **PRIVATE)
    client.hello({"protocol": PROTOCOL, "run": "r1", "config": config_to_send(config)})
    header = {"run": "r1", "op": "train", "task": 0, "round": 0, "client": 0, "generation": 0}
    sent = pack({"weights": torch.zeros(3), "secure.session": "s"})
    before = client.run
    answer, reply = client.ask({**header, "op": "keep_random.keys"}, pack({"secure.session": "s"}))
    assert "'keep_random' is not among train, evaluate" in answer["failed"]
    answer, reply = client.ask({**header, "op": "train.unmask"}, sent)
    assert answer["failed"] == "secure aggregation: unmask of a sum that this client has no keys for"
    assert unpack(reply) == {}
    assert client.run is before, "a refusal leaves the client as it was"
    answer, reply = client.ask({**header, "op": "train.keys"}, pack({"secure.session": "s"}))
    assert tensor_of(unpack(reply), "keys").shape == (1, 96 + 132)
    assert (tmp_path / "clinic-a" / "r1" / "store" / "secure").stat().st_mode & 0o077 == 0
