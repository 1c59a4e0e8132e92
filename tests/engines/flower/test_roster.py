"""Who is who: ids are kept by name, and strangers stay outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from dropouts import config_for
from flwr.proto.node_pb2 import NodeInfo
from local_grid import NODE, LocalGrid, local_nodes

from fedfeat.engines.flower.client import FederationClient
from fedfeat.engines.flower.messages import Header
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in
from toy import toy_dataset


def test_the_server_gives_ids_by_name_and_remembers_them(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config_for(tmp_path), {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz", known_ids=False)
    run_in(tmp_path / "run", LocalGrid(nodes))
    known = json.loads((tmp_path / "run" / "federation.json").read_text())["clients"]
    assert known == {"client0": 0, "client1": 1, "client2": 2}, "who comes at the same time is numbered by name"
    (tmp_path / "again").mkdir()
    shutil.copytree(tmp_path / "run", tmp_path / "again" / "run")
    (tmp_path / "again" / "run" / "result.json").unlink()
    swapped = {NODE + 2 - place: client for place, client in enumerate(nodes.values())}
    run_in(tmp_path / "again" / "run", LocalGrid(swapped))
    assert json.loads((tmp_path / "again" / "run" / "federation.json").read_text())["clients"] == known


def test_the_name_of_a_key_counts_more_than_what_a_client_says(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config_for(tmp_path), {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz", known_ids=False)
    grid = LocalGrid(nodes)
    keys = {NODE: "a", NODE + 1: "b", NODE + 2: "c"}
    grid.get_nodes = lambda: [NodeInfo(node_id=node, name=keys[node]) for node in nodes]  # type: ignore[method-assign]
    run_in(tmp_path / "run", grid)
    assert set(json.loads((tmp_path / "run" / "federation.json").read_text())["clients"]) == {"a", "b", "c"}


def test_a_client_with_other_data_or_a_taken_id_does_not_take_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_for(tmp_path, quorum=0.3)
    RunFolder.create(tmp_path / "run", config, {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    (tmp_path / "elsewhere").mkdir()
    other = toy_dataset()
    np.savez(
        tmp_path / "elsewhere" / "toy.npz",
        x=255 - other.train_images,
        y=other.train_labels,
        xt=other.test_images,
        yt=other.test_labels,
    )
    nodes[NODE + 1] = local_nodes(tmp_path, tmp_path / "elsewhere" / "toy.npz")[NODE + 1]
    twin = local_nodes(tmp_path / "twin", tmp_path / "toy.npz")[NODE]
    twin.settings = type(twin.settings)(twin.settings.folder, "zoe", 2, device="cpu")
    nodes[NODE + 7] = twin
    with caplog.at_level("WARNING"):
        result = run_in(tmp_path / "run", LocalGrid(nodes))
    assert "its data set is not the server's" in caplog.text
    assert "zoe cannot take part: it asks for id 2, which is taken" in caplog.text
    assert all(f["missing"] == {"1": "not connected"} for f in result["rounds_with_fewer_clients"])


class RefusedAtFirst:
    """A client that cannot take part when it is greeted first; its owner then fixes it."""

    def __init__(self, client: FederationClient) -> None:
        self.real, self.hellos = client.hello, 0

    def hello(self, header: Header) -> Header:
        self.hellos += 1
        return {"name": "client1", "refused": "data: not found"} if self.hellos <= 2 else self.real(header)


def test_a_client_that_was_fixed_is_let_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedfeat.engines.flower.roster.AGAIN_AFTER", 0.0)
    RunFolder.create(tmp_path / "run", config_for(tmp_path, "finetune", wait=10.0), {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    refused = RefusedAtFirst(nodes[NODE + 1])
    nodes[NODE + 1].hello = refused.hello  # type: ignore[method-assign]
    with caplog.at_level("WARNING"):
        result = run_in(tmp_path / "run", LocalGrid(nodes))
    assert result["rounds_with_fewer_clients"] == []
    assert refused.hellos == 3
    assert caplog.text.count("client1 cannot take part: data: not found") == 1, "the same reason is said once"


def test_a_client_that_was_refused_is_left_alone_for_a_while(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config_for(tmp_path, "finetune"), {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    refused = RefusedAtFirst(nodes[NODE + 1])
    nodes[NODE + 1].hello = refused.hello  # type: ignore[method-assign]
    run_in(tmp_path / "run", LocalGrid(nodes))
    assert refused.hellos == 1


@pytest.mark.parametrize(
    "change",
    [{"generation": None}, {"exemplars": "x"}, {"classes": 5}, {"classes": [[]]}, {"client": [1]}, {"client": 1.0}],
    ids=str,
)
def test_a_hello_that_cannot_be_read_costs_its_client_alone(change: Header, tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config_for(tmp_path, "finetune"), {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    real = nodes[NODE + 1].hello
    nodes[NODE + 1].hello = lambda header: {**real(header), **change}  # type: ignore[method-assign]
    result = run_in(tmp_path / "run", LocalGrid(nodes))
    assert {tuple(short["missing"].items()) for short in result["rounds_with_fewer_clients"]} == {
        (("1", "not connected"),)
    }
