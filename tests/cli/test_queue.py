"""``fedfeat queue``: runs in one process, each as in a process of its own, as many as fit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner, Result

from fedfeat.cli import app
from fedfeat.cli.queue import read_queue
from fedfeat.core.errors import ConfigError
from fedfeat_reproduction.records import read_record, record_of_run, write_record
from toy import toy_table, write_toy
from toy_runs import weights


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(tomli_w.dumps(toy_table(data={"path": str(write_toy(tmp_path / "toy.npz"))})))
    return path


def fedfeat(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def queue_of(folder: Path, *lines: str) -> Path:
    path = folder / "queue.txt"
    path.write_text("\n".join(["# in the order of value", *lines, ""]))
    return path


def result_and_weights(folder: Path) -> tuple[dict[str, object], bytes]:
    result = json.loads((folder / "result.json").read_text())
    return {k: v for k, v in result.items() if "second" not in k}, weights(folder)


def test_runs_of_a_queue_equal_runs_of_their_own_and_a_failure_ends_no_other(config: Path, tmp_path: Path) -> None:
    file = queue_of(
        tmp_path,
        f"1 run {config} --set train.lr=1e30 --set train.lr_min=0",
        f"1 run {config} --set method=replay",
        f"9e9 run {config} --set seed=7",
        f"1 run {config} --set method=replay --set train.model_selection=mean",
    )
    done = fedfeat("queue", file, "--out", tmp_path / "runs", "--results", tmp_path, "--limit", "1000")
    assert done.exit_code == 1
    assert "2 done now, 1 failed, 1 left for later" in done.output
    queued = [run.path for _, run in read_queue(file, tmp_path / "runs")]
    for number, path in ((1, queued[1]), (3, queued[3])):
        options = file.read_text().splitlines()[number + 1].split()[2:]
        assert fedfeat("run", *options, "--out", tmp_path / f"own{number}").exit_code == 0
        assert result_and_weights(path) == result_and_weights(tmp_path / f"own{number}")


def test_what_is_finished_or_recorded_is_not_run_again(config: Path, tmp_path: Path) -> None:
    file = queue_of(tmp_path, f"1 run {config} --set method=finetune")
    ((_, run),) = read_queue(file, tmp_path / "runs")
    arguments = ("queue", file, "--out", tmp_path / "runs", "--results", tmp_path)
    assert "1 done now" in fedfeat(*arguments).output
    assert "1 done before" in fedfeat(*arguments, "--limit", "0").output
    write_record(record_of_run(run.path), tmp_path).rename(tmp_path / "whatever-its-name.json")
    assert f"nothing to run, 1 with a record in {tmp_path}" in fedfeat(*arguments).output.replace("\n", "")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run digits", "line 2: expected the seconds that a run may take, got 'run'"),
        ("-5 run digits", "line 2: expected the seconds that a run may take, got '-5'"),
        ("nan run digits", "line 2: expected the seconds that a run may take, got 'nan'"),
        ("90 run digits --set 'seed=1", "line 2: No closing quotation"),
        ("90 compare digits", "line 2: argument command: invalid choice: 'compare'"),
        ("90 run digits --set train.round=3", "line 2: --set: "),
        ("90 run digits --fast", "line 2: unrecognized arguments: --fast"),
    ],
)
def test_a_wrong_line_is_told_before_anything_runs(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"queue\.txt, line 2") as caught:
        read_queue(queue_of(tmp_path, line), tmp_path)
    assert told in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queue.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"queue\.txt: not a text file"):
        read_queue(tmp_path / "queue.txt", tmp_path)


def test_every_run_is_recorded_as_it_ends_and_then_crossed_off(tmp_path: Path) -> None:
    small = "run digits --set scenario.tasks=2 --set train.rounds=1 --set train.schedule=constant"
    file = queue_of(tmp_path, f"1 {small} --set method=replay", f"1 {small} --set train.lr=1e30")
    options = ("--out", tmp_path / "runs", "--results", tmp_path / "results", "--record", "the original pixels")
    assert fedfeat("queue", file, *options).exit_code == 1
    (path,) = (tmp_path / "results").iterdir()
    assert read_record(path).method == "replay"
    assert read_record(path).images == "digits, the original pixels"
    shutil.rmtree(tmp_path / "runs")
    again = fedfeat("queue", file, *options).output
    assert "1 failed" in again
    assert "done now" not in again


def test_every_line_of_the_queue_behind_the_reproduction_page_is_understood_and_is_there_once(tmp_path: Path) -> None:
    names = [run.path.name for _, run in read_queue(Path(__file__).parents[2] / "results" / "queue.txt", tmp_path)]
    assert len(names) == len(set(names))
