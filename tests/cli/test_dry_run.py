"""A dry run says what a run then does, finds what a run would stumble over, and leaves nothing behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner, Result

from fedfeat.cli import app
from fedfeat.config.config import make_config
from fedfeat.methods import PARTS
from fedfeat.methods.replay import UniformChoice
from fedfeat.runs import forecast, rehearsal
from fedfeat.runs.experiment import start
from fedfeat.runs.forecast import DryRuns
from toy import toy_table, write_toy

GENERATION = {"rounds": 2, "batch": 16, "steps": 2, "warmup": 0, "student_steps": 2}
FEW = {"participation": 0.5, "clients": 6}


def digits(method: str, **scenario: Any) -> dict[str, Any]:
    return {
        "method": method,
        "data": {"name": "digits"},
        "scenario": {"tasks": 3, "clients": 3, "budget": 30, **scenario},
        "model": {"width": 8},
        "train": {"rounds": 4, "local_epochs": 2, "batch": 32, "lr": 0.05},
        "engine": {"device": "cpu", "threads": 1},
        "target": {"batch": 16, "generation": GENERATION},
    }


# What crosses in training and after it, once per task and only to some, and what depends on a client's images.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "scenario"),
    [
        ("joint", {}),
        ("herding+ncm", {"joins": {"2": 2}}),
        ("fedcbdr+feat+calibrate", FEW),
        ("fedcbdr+scaffold", {}),
        ("fedewc", FEW),
        ("target", FEW),
    ],
)
def test_bytes_and_images_are_those_that_the_run_measures(
    method: str, scenario: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rehearsal.VALUES, "cpu", 64 * 96)  # 96 of the task's 400 images
    config = make_config(digits(method, **scenario))
    found = DryRuns().forecast(config)
    result = start(config, tmp_path / "run")
    whole = found.left()
    assert (whole.up, whole.down) == (result["bytes_up"], result["bytes_down"])
    held_out = 0.03 if "calibrate" in method else 0.0  # counted as if they were trained on
    assert whole.trained == pytest.approx(result["images_trained"], rel=held_out)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert whole.rounds == sum(event["event"] == "round" for event in events) == 12
    assert whole.seconds > 0


def test_steps_and_what_is_left_of_a_run_that_has_begun() -> None:
    table = digits("finetune") | {"scenario": {"tasks": 2, "clients": 1}}
    found = DryRuns().forecast(make_config(table))
    first, second = found.tasks
    assert first.steps == 4 * 2 * -(-first.images // 32)
    assert found.left(0.5).steps == round(first.steps / 2) + second.steps
    assert found.left(1.0).up == second.up
    assert found.left(2.0).rounds == 0


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, with an experiment beside it."""
    monkeypatch.setenv("FEDFEAT_HOME", str(tmp_path / "here" / "home"))
    table = toy_table(method="replay", data={"path": str(write_toy(tmp_path / "toy.npz"))})
    (tmp_path / "toy.toml").write_text(tomli_w.dumps(table))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "toy.toml"


def fedfeat(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def row(output: str, name: str) -> list[str]:
    lines = (line.strip() for line in output.splitlines())
    return next(line.removeprefix(name).split() for line in lines if line.startswith(name))


def test_one_table_and_nothing_is_written(toy: Path) -> None:
    done = fedfeat("run", toy, "--dry-run")
    assert done.exit_code == 0, done.output
    clients, images, kept, rounds = row(done.output, "all")[:4]
    assert (clients, images, kept, rounds) == ("3", "144", "12", "6")
    assert list(Path().iterdir()) == [], "not even a cache of decoded images"


def test_what_many_images_take_is_told(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "TOLD_BYTES", 1)
    assert "images take 0.0 GB, held on the device" in fedfeat("run", toy, "--dry-run").output


@pytest.mark.slow
def test_of_many_runs_each_has_a_row_and_what_is_finished_is_not_summed(toy: Path) -> None:
    command = ["compare", toy, "--methods", "finetune,replay", "--seeds", "0,1", "--out", "runs"]
    config = make_config(toy_table(method="finetune", seed=0, data={"path": str(toy.with_suffix(".npz"))}))
    start(config, Path("runs/finetune/seed0"))
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    done = fedfeat(*command, "--dry-run")
    assert done.exit_code == 0, done.output
    assert row(done.output, "finetune seed 0") == ["finished"]
    assert row(done.output, "replay seed 1")[:3] == ["to", "run", "6"]
    assert row(done.output, "all")[:4] == ["3", "to", "run", "18"]
    other = fedfeat(*command, "--set", "train.lr=0.01", "--dry-run")
    assert other.exit_code == 1, "as the command itself would end"
    assert "finetune seed 0: runs/finetune/seed0: the configuration does not match the run begun here" in other.output
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


@pytest.fixture
def _leave_no_trace() -> Iterator[None]:
    """A plugin stays registered as long as the process lives; other tests must not notice."""
    before = dict(PARTS)
    yield
    PARTS.clear()
    PARTS.update(before)


@pytest.mark.usefixtures("_leave_no_trace")
def test_a_mistake_that_a_run_would_meet_at_the_end_of_its_first_task_is_found(toy: Path) -> None:
    plugin = toy.with_name("late.py")
    plugin.write_text(
        "from fedfeat.api import Method, TaskEndStep, base\n\n\n"
        "class Late(TaskEndStep):\n"
        "    def at_task_end(self, task_end):\n"
        "        task_end.no_such_thing\n\n\n"
        "@base('late')\n"
        "def late(settings):\n"
        "    return Method('late', task_end=(Late(),))\n"
    )
    done = fedfeat("run", toy, "--plugin", plugin, "--set", "method=late", "--dry-run")
    assert isinstance(done.exception, AttributeError), "as in the run itself"
    many = fedfeat("compare", toy, "--plugin", plugin, "--methods", "late,replay", "--seeds", "0", "--dry-run")
    assert many.exit_code == 1
    assert "late seed 0: AttributeError: 'TaskEnd' object has no attribute 'no_such_thing'" in many.output
    assert row(many.output, "all")[:3] == ["1", "to", "run"]
    assert list(Path().iterdir()) == []


def test_a_task_end_without_end_is_cut_off_and_told(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UniformChoice, "at_task_end", lambda self, task_end: time.sleep(60))
    config = make_config(toy_table(method="replay", data={"path": str(toy.with_suffix(".npz"))}))
    begun = time.monotonic()
    found = DryRuns(seconds=1.0).forecast(config)
    assert time.monotonic() - begun < 30
    assert found.notes == (
        "there was time to rehearse 1 of 3 tasks; the others are reckoned like the last of these, whose end was cut "
        "off: bytes and time are at least these",
    )
    assert found.left().rounds == 6
