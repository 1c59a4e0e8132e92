"""Clients that own their images as real processes: the run completes, nothing but what was announced leaves them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import processes_that_mention
from local_grid import NODE, LocalGrid
from own_images import OWNERS, own_config, write_owners
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.config.config import Config
from fedfeat.engines.flower.client import ClientSettings, FederationClient
from fedfeat.runs import deploy
from fedfeat.runs.server_app import run_in
from report.report_page import Page
from toy_runs import weights


def federate(*arguments: str) -> Any:
    """Call the command in this process; the server and its clients are processes of their own."""
    return CliRunner().invoke(app, ["federate", *arguments])


@pytest.mark.processes
def test_three_owners_learn_together(tmp_path: Path) -> None:
    write_owners(tmp_path / "data")
    config = own_config("herding+feat", train={"rounds": 3})
    (tmp_path / "own.toml").write_text(config.to_toml())
    place = ["--set", f"data.path={tmp_path / 'data'}", "--out", str(tmp_path / "run")]
    done = federate(str(tmp_path / "own.toml"), *place, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "clinic-b takes part as client 1" in done.output
    assert processes_that_mention(str(tmp_path)) == []
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert min(result["accuracy_matrix"][-1]) >= 80
    assert result["rounds_with_fewer_clients"] == []
    # A fifth of each owner's images of a class is tested on: 6 cats, 4 dogs, 5 ships, 7 trucks.
    assert np.sum(result["confusion"], axis=1).tolist() == [6, 4, 5, 7]
    up = {k.removeprefix("up/"): v for k, v in result["traffic"].items() if k.startswith("up/")}
    assert sum(v for k, v in up.items() if k.endswith("/weights")) > 0.9 * sum(
        v for k, v in up.items() if not k.startswith("evaluate/")
    )
    assert {k for k, size in up.items() if size > 100 and not k.startswith("evaluate/")} == {"train/weights"}
    assert sent_by_clients(tmp_path / "run") == up
    run_without_processes(deploy.federated(config), tmp_path / "here", tmp_path / "data")
    assert weights(tmp_path / "run") == weights(tmp_path / "here")
    assert "truck" in Page((tmp_path / "run" / "report.html").read_text()).data_text


def sent_by_clients(run: Path) -> dict[str, int]:
    """What clients' own journals say they sent in a run."""
    name = json.loads((run / "federation.json").read_text())["run"]
    sent: Counter[str] = Counter()
    for owner in OWNERS:
        journal = run / "federation" / owner / "state" / name / "store" / "journal.json"
        sent.update(json.loads(journal.read_text())["sent"])
    return dict(sent)


def run_without_processes(config: Config, folder: Path, data: Path) -> None:
    nodes = {
        NODE + k: FederationClient(ClientSettings(folder.parent / name, name, device="cpu"), data / name)
        for k, name in enumerate(OWNERS)
    }
    deploy.prepare_run(config, folder)
    run_in(folder, LocalGrid(nodes))


def test_a_folder_without_one_folder_per_client_is_refused(tmp_path: Path) -> None:
    write_owners(tmp_path / "data")
    (tmp_path / "own.toml").write_text(own_config("finetune").to_toml())
    config = str(tmp_path / "own.toml")
    wrong = federate(
        config, "--clients", "5", "--set", f"data.path={tmp_path / 'data'}", "--out", str(tmp_path / "run")
    )
    assert str(wrong.exception).endswith("holds the folders of 3 clients, not 5")
    assert "one folder per client, got nothing; set data.path" in str(federate(config).exception)
