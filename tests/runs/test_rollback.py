"""Going back: a run that repeats rounds ends as if it had not, and says that it did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedfeat.cli import app
from fedfeat.core.errors import CheckpointError, ConfigError, FedfeatError
from fedfeat.core.lock import lock_folder
from fedfeat.report.run import read_run
from fedfeat.runs.experiment import resume, start
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.rollback import roll_back
from toy import toy_config, untimed, write_toy
from toy_runs import weights

PRIVATE = {"model": {"norm": "group"}, "privacy": {"clip": 1.0, "noise": 0.5}}


def run_toy(tmp_path: Path, **changes: Any) -> tuple[Path, dict[str, Any]]:
    """Run the toy problem of three tasks and two rounds with a checkpoint after every round."""
    data = write_toy(tmp_path / "toy.npz")
    kept = {"checkpoint_seconds": 0.0, "keep_task_ends": True, **changes.pop("run", {})}
    config = toy_config("herding+feat", data={"path": str(data)}, run=kept, train={"rounds": 2}, **changes)
    return tmp_path / "run", start(config, tmp_path / "run")


@pytest.mark.parametrize(("to", "repeated"), [("1:end", 4), ("2:end", 2), ("3:2", 0)])
def test_a_run_that_went_back_ends_with_the_same_bytes_and_says_so(tmp_path: Path, to: str, repeated: int) -> None:
    folder, result = run_toy(tmp_path, **PRIVATE)
    before, events = weights(folder), len(RunFolder(folder).events())
    done = CliRunner().invoke(app, ["rollback", str(folder), "--to", to])
    assert done.exit_code == 0, done.output
    assert f"to {to} ({repeated} rounds repeated" in done.output
    assert not (folder / "result.json").exists()
    again = resume(folder)
    assert weights(folder) == before
    (record,) = again.pop("rollbacks")
    assert (record["from"], record["to"], record["rounds"]) == ("3:end", to, repeated)
    spent, spent_again = result.pop("privacy"), again.pop("privacy")
    assert (spent["releases"], spent_again["releases"]) == (6, 6 + repeated)
    assert spent_again["epsilon"] > spent["epsilon"] or not repeated
    assert untimed(again) == untimed(result)
    told = RunFolder(folder).events()
    assert len(told) == events + 1
    assert [e["to"] for e in told if e["event"] == "rollback"] == [to]
    assert any(f"went back from 3:end to {to}" in note for note in read_run(folder).missing)


def test_a_place_that_is_not_kept_is_refused_and_what_is_kept_is_named(tmp_path: Path) -> None:
    folder, _ = run_toy(tmp_path, run={"keep_task_ends": False})
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"1:end is not kept; kept are 3:2, 3:end .*run\.keep_task_ends"):
        roll_back(folder, "1:end")
    for odd in ("1", "0:1", "1:0", "-1:end", "end", "1:2:3", ""):
        with pytest.raises(ConfigError, match="expected TASK:ROUND or TASK:end"):
            roll_back(folder, odd)
    with lock_folder(folder), pytest.raises(FedfeatError, match="another program"):
        roll_back(folder, "3:2")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"} == {
        path: content for path, content in files.items() if path.name != ".lock"
    }


def test_ends_of_tasks_cost_a_checkpoint_each_and_later_ones_go(tmp_path: Path) -> None:
    folder, _ = run_toy(tmp_path, run={"keep_models": True})
    kept = RunFolder(folder).checkpoints.kept()
    assert sorted(map(str, kept)) == ["1:end", "2:end", "3:2", "3:end"]
    roll_back(folder, "1:end")
    assert list(map(str, RunFolder(folder).checkpoints.kept())) == ["1:end"]
    assert [path.name for path in (folder / "models").iterdir()] == ["task-01.safetensors"]
    resume(folder)
    assert sorted(map(str, RunFolder(folder).checkpoints.kept())) == ["1:end", "2:end", "3:2", "3:end"]


def test_a_damaged_end_is_not_offered(tmp_path: Path) -> None:
    folder, _ = run_toy(tmp_path)
    places = {str(place): path for place, path in RunFolder(folder).checkpoints.kept().items()}
    (places["1:end"] / "server.safetensors").write_bytes(b"rubbish")
    with pytest.raises(CheckpointError, match="1:end is not kept; kept are 2:end"):
        roll_back(folder, "1:end")
    (folder / "rollbacks.json").write_text("[")
    assert any("rollbacks.json cannot be read" in note for note in read_run(folder).missing)
    with pytest.raises(CheckpointError, match="damaged"):
        roll_back(folder, "2:end")
    assert json.loads((folder / "result.json").read_text())["seed"] is not None


def test_a_federation_with_masked_sums_cannot_repeat_a_round(tmp_path: Path) -> None:
    masked = {"engine": {"name": "flower"}, "privacy": {"secure_aggregation": True}}
    config = toy_config("replay+feat", data={"path": str(write_toy(tmp_path / "toy.npz"))}, **masked)
    RunFolder.create(tmp_path / "run", config, {})
    with pytest.raises(CheckpointError, match="one masked sum only"):
        roll_back(tmp_path / "run", "1:end")
