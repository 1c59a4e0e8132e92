"""Clients that own their images as real processes: the run completes, nothing but what was announced leaves them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from federations import processes_that_mention
from local_grid import NODE, LocalGrid
from own_images import OWNERS, own_config, write_owners
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.config import Config
from fedfeat.engines.flower.client import ClientSettings, FederationClient
from fedfeat.engines.flower.client_data import ClientData
from fedfeat.runs import deploy
from fedfeat.runs.deploy import Server
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """A server and three clients with folders of their own; ids are the server's to give."""
    folder = tmp_path_factory.mktemp("own-data")
    with ExitStack() as stack:
        server = stack.enter_context(deploy.server(folder / "server"))
        for name, path in write_owners(folder / "data").items():
            options = {"device": "cpu", "data": str(path)}
            stack.enter_context(deploy.client(folder / name, name, server.address, options))
        yield server, folder
    assert processes_that_mention(str(folder)) == []


def quick(method: str) -> Config:
    return deploy.federated(own_config(method, train={"rounds": 3}))


def weights(folder: Path) -> bytes:
    loaded = RunFolder.open(folder).checkpoints.load()
    assert loaded is not None
    return loaded[0].weights.numpy().tobytes()


@pytest.mark.parametrize("method", ["fedcbdr+feat", "herding+feat"])
def test_three_owners_learn_together(method: str, federation: tuple[Server, Path], tmp_path: Path) -> None:
    server, folder = federation
    run = deploy.prepare_run(quick(method), tmp_path / "run")
    result = server.run(run)
    assert min(result["accuracy_matrix"][-1]) >= 80
    assert result["rounds_with_fewer_clients"] == []
    # A fifth of each owner's images of a class is tested on: 6 cats, 4 dogs, 5 ships, 7 trucks.
    assert np.sum(result["confusion"], axis=1).tolist() == [6, 4, 5, 7]
    up = {k.removeprefix("up/"): v for k, v in result["traffic"].items() if k.startswith("up/")}
    assert sum(v for k, v in up.items() if k.endswith("/weights")) > 0.9 * sum(
        v for k, v in up.items() if not k.startswith("evaluate/")
    )
    large = {k for k, size in up.items() if size > 100 and not k.startswith("evaluate/")}
    assert large <= {"train/weights", "masked_features/features"}
    assert sent_by_clients(folder, tmp_path / "run") == up
    if method == "herding+feat":  # fedcbdr's masks are drawn from clients' secrets, and round differently
        run_without_processes(quick(method), tmp_path / "here", folder / "data")
        assert weights(tmp_path / "run") == weights(tmp_path / "here")
    page = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert page.exit_code == 0, page.output
    assert "truck" in (tmp_path / "run" / "report.html").read_text()


def sent_by_clients(folder: Path, run: Path) -> dict[str, int]:
    """What clients' own journals say they sent in a run."""
    name = json.loads((run / "federation.json").read_text())["run"]
    sent: Counter[str] = Counter()
    for owner in OWNERS:
        sent.update(json.loads((folder / owner / "state" / name / "store" / "journal.json").read_text())["sent"])
    return dict(sent)


def run_without_processes(config: Config, folder: Path, data: Path) -> None:
    nodes = {
        NODE + k: FederationClient(ClientSettings(folder.parent / name, name, device="cpu"), ClientData(data / name))
        for k, name in enumerate(OWNERS)
    }
    deploy.prepare_run(config, folder)
    run_in(folder, LocalGrid(nodes))


def test_the_command_finds_one_folder_per_client(tmp_path: Path) -> None:
    write_owners(tmp_path / "data")
    config = tmp_path / "own.toml"
    config.write_text(own_config("finetune").to_toml())
    place = ["--set", f"data.path={tmp_path / 'data'}", "--out", str(tmp_path / "run")]
    wrong = CliRunner().invoke(app, ["federate", str(config), "--clients", "5", *place])
    assert wrong.exception is not None
    assert str(wrong.exception).endswith("holds the folders of 3 clients, not 5")
    nothing = CliRunner().invoke(app, ["federate", str(config)])
    assert "one folder per client, got nothing; set data.path" in str(nothing.exception)
    small = ["--set", "train.rounds=1", "--device", "cpu"]
    done = CliRunner().invoke(app, ["federate", str(config), *place, *small], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "clinic-b takes part as client 1" in done.output
    assert (tmp_path / "run" / "result.json").exists()
    assert processes_that_mention(str(tmp_path)) == []
