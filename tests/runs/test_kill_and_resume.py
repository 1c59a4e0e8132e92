"""Real processes, really killed: a resumed run ends with the bytes of an uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedfeat.config.config import load_config
from fedfeat.data import DataSettings, load_dataset
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment, resume, start
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_table, untimed, write_toy
from toy_runs import weights


def fedfeat(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "fedfeat", *map(str, arguments)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_toy(tmp_path / "toy.npz")
    table = toy_table(method="fedcbdr+feat", data={"path": str(tmp_path / "toy.npz")}, train={"rounds": 15})
    (tmp_path / "toy.toml").write_text(tomli_w.dumps(table))
    return tmp_path / "toy.toml"


@pytest.mark.processes
def test_kill_minus_nine_at_several_moments(config: Path, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    start(load_config(config), whole)
    command = fedfeat("run", config, "--out", cut)
    for lines in (3, 30):
        kill_after(lines, command, cut)
        command = fedfeat("resume", cut)
    resume(cut)
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, cut)]
    assert untimed(results[0]) == untimed(results[1])
    assert weights(whole) == weights(cut)
    events = [[untimed(e) for e in RunFolder.open(folder).events()] for folder in (whole, cut)]
    assert events[0] == events[1]


def test_a_selection_that_draws_by_round_is_the_same_after_a_resume(tmp_path: Path) -> None:
    """Stopped between the last round of a task and the choice of exemplars, which augments images in mode repo."""
    write_toy(tmp_path / "toy.npz")
    changes = {"fedcbdr": {"mode": "repo"}, "data": {"path": str(tmp_path / "toy.npz"), "augment": "crop-flip"}}
    config = toy_config("fedcbdr", **changes)

    start(config, tmp_path / "whole")
    experiment = Experiment(config)
    folder = RunFolder.create(tmp_path / "cut", config, {})

    def stop(task_end: object) -> None:
        raise InterruptedError

    assert experiment.method.replay is not None
    experiment.method.replay.at_task_end = stop  # type: ignore[method-assign]
    with pytest.raises(InterruptedError):
        experiment.run(folder, Progress(), ())
    resume(tmp_path / "cut")
    assert weights(tmp_path / "whole") == weights(tmp_path / "cut")


def kill_after(lines: int, command: list[str], folder: Path) -> None:
    """Start a run in a process of its own and kill it once it has written so many events."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and _lines(folder / "events.jsonl") < lines:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "the run was over before it could be killed"
    assert not (folder / "result.json").exists()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
@pytest.mark.real_data
def test_cifar10_with_resnet18_stopped_and_resumed(tmp_path: Path) -> None:
    """Real images, the real network: a short run of FEAT_F on CPU, end to end."""
    if "FEDFEAT_DATA" not in os.environ:
        pytest.skip("set FEDFEAT_DATA to a folder that holds cifar10")
    sets = [f"data.path={_some_of_cifar10(tmp_path / 'some.npz')}", "data.name=npz", "data.augment=crop-flip"]
    sets += [
        "engine.device=cpu",
        "engine.threads=1",
        "scenario.tasks=2",
        "scenario.clients=3",
        "scenario.budget=12",
        "train.rounds=1",
        "train.batch=32",
        "train.local_epochs=1",
    ]
    sets += ["run.checkpoint_seconds=0", "feat.logits=cosine"]
    config, whole, cut = load_config(Path("cifar10-5"), sets), tmp_path / "whole", tmp_path / "cut"

    def stop(event: Mapping[str, Any]) -> None:
        if event["event"] == "task":
            raise InterruptedError

    start(config, whole)
    with pytest.raises(InterruptedError):
        start(config, cut, (stop,))
    resume(cut)
    results = [json.loads((folder / "result.json").read_text()) for folder in (whole, cut)]
    assert untimed(results[0]) == untimed(results[1])
    assert weights(whole) == weights(cut)
    assert len(results[0]["accuracy_matrix"]) == 2
    assert results[0]["config"]["model"]["name"] == "auto"


def _some_of_cifar10(path: Path) -> Path:
    """A few training and test images of four classes: the whole set would take an hour on two cores."""
    dataset = load_dataset(DataSettings(name="cifar10", subset_classes=4))
    train, test = (
        np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(4)])
        for labels, count in ((dataset.train_labels, 10), (dataset.test_labels, 4))
    )
    np.savez(
        path,
        x=dataset.train_images[train],
        y=dataset.train_labels[train],
        xt=dataset.test_images[test],
        yt=dataset.test_labels[test],
    )
    return path
