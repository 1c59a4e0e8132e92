from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedfeat.algorithm.tables import Tables
from fedfeat.config.config import Config
from fedfeat.core.errors import CheckpointError, FedfeatError
from fedfeat.core.payload import State
from fedfeat.federation.progress import Progress
from fedfeat.runs.checkpoint import MOST_SHARDS, CheckpointFolder
from fedfeat.runs.experiment import resume, start
from toy import toy_config, untimed, write_toy


def make_config(folder: Path) -> Config:
    write_toy(folder / "toy.npz")
    return toy_config("fedcbdr+feat", data={"path": str(folder / "toy.npz")})


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return make_config(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    start(config, folder)
    return folder


def result_of(folder: Path) -> dict[str, Any]:
    return untimed(json.loads((folder / "result.json").read_text()))


class Stop(Exception):
    pass


def interrupted(config: Config, folder: Path, after: int) -> Path:
    seen = 0

    def stop(event: object) -> None:
        nonlocal seen
        seen += 1
        if seen > after:
            raise Stop

    with pytest.raises(Stop):
        start(config, folder, (stop,))
    return folder


@pytest.fixture(scope="module")
def half(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was interrupted in its second task; to be copied."""
    return interrupted(config, tmp_path_factory.mktemp("half") / "run", after=6)


@pytest.fixture
def cut(half: Path, tmp_path: Path) -> Path:
    """A copy of the interrupted run."""
    return Path(shutil.copytree(half, tmp_path / "cut"))


def newest(folder: Path) -> Path:
    return max(p for p in (folder / "checkpoint").iterdir() if p.name.isdigit())


@pytest.mark.parametrize("victim", ["manifest.json", "server.safetensors"])
@pytest.mark.parametrize("damage", ["torn", "edited", "gone"])
def test_a_damaged_checkpoint_is_recognised_and_the_one_before_is_used(
    whole: Path, cut: Path, victim: str, damage: str
) -> None:
    path = newest(cut) / victim
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:-30] + bytes([content[-30] ^ 1]) + content[-29:])
    if victim == "manifest.json" and damage == "gone":  # never completed: no word about it is needed
        result = resume(cut)
    else:
        with pytest.warns(UserWarning, match="damaged"):
            result = resume(cut)
    assert untimed(result) == result_of(whole)


def test_when_every_checkpoint_is_damaged_it_says_so(cut: Path) -> None:
    for path in (cut / "checkpoint").glob("0*/server.safetensors"):
        path.write_bytes(b"nothing")
    with (
        pytest.warns(UserWarning, match="damaged .*; looking for the checkpoint before it"),
        pytest.raises(CheckpointError, match="every checkpoint is damaged"),
    ):
        resume(cut)


def test_killed_before_the_first_checkpoint_starts_over(config: Config, whole: Path, tmp_path: Path) -> None:
    folder = interrupted(config, tmp_path / "cut", after=1)
    assert not list((folder / "checkpoint").glob("0*"))
    assert untimed(resume(folder)) == result_of(whole)


def test_another_config_is_refused_naming_the_keys(cut: Path) -> None:
    text = (cut / "config.toml").read_text()
    (cut / "config.toml").write_text(text.replace("lr = 0.05", "lr = 0.06").replace("tau = 0.07", "tau = 0.5"))
    with pytest.raises(CheckpointError, match=r"feat\.gsa\.tau, train\.lr"):
        resume(cut)


def test_where_files_are_may_change(config: Config, whole: Path, cut: Path, tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    write_toy(tmp_path / "moved" / "toy.npz")
    text = (cut / "config.toml").read_text()
    moved = text.replace(str(config.data.path), str(tmp_path / "moved" / "toy.npz"))
    assert moved != text
    (cut / "config.toml").write_text(moved)
    assert untimed(resume(cut)) == result_of(whole)


def test_other_data_is_refused(tmp_path: Path) -> None:
    folder = interrupted(make_config(tmp_path), tmp_path / "cut", after=4)
    with np.load(tmp_path / "toy.npz") as archive:
        arrays = dict(archive)
    arrays["x"][0, 0, 0, 0] ^= 1
    np.savez(tmp_path / "toy.npz", **arrays)
    with pytest.raises(CheckpointError, match="not the one the run began with"):
        resume(folder)


def test_a_finished_run_is_returned_not_run_again(whole: Path) -> None:
    before = (whole / "events.jsonl").stat().st_mtime_ns
    assert resume(whole) == json.loads((whole / "result.json").read_text())
    assert (whole / "events.jsonl").stat().st_mtime_ns == before


def test_a_folder_with_a_run_is_not_overwritten(config: Config, whole: Path) -> None:
    with pytest.raises(FedfeatError, match="already holds a run"):
        start(config, whole)


@pytest.mark.skipif(os.name != "posix", reason="locks are those of POSIX")
def test_a_run_that_goes_on_is_not_taken_up_by_a_second_program(config: Config, tmp_path: Path) -> None:
    refused: list[str] = []

    def meddle(event: dict[str, object]) -> None:
        if event["event"] == "task" and not refused:
            with pytest.raises(FedfeatError) as error:
                resume(tmp_path / "run")
            refused.append(str(error.value))

    start(config, tmp_path / "run", (meddle,))
    assert f"another program (process {os.getpid()}) is running this" in refused[0]
    assert resume(tmp_path / "run")["final_accuracy"] >= 0


def test_a_run_without_a_checkpoint_begins_anew_and_says_who_sees_what_now(cut: Path, whole: Path) -> None:
    shutil.rmtree(cut / "checkpoint")
    (cut / "scenario.json").write_text("{}")
    resume(cut)
    assert (cut / "scenario.json").read_text() == (whole / "scenario.json").read_text()


def test_a_checkpoint_holds_no_pickle(whole: Path) -> None:
    files = [p for p in whole.rglob("*") if p.is_file() and p.name != ".lock"]
    assert {p.suffix for p in files} <= {".safetensors", ".json", ".jsonl", ".toml"}


def progress(task: int = 1) -> Progress:
    tables = [Tables(np.eye(2, dtype=np.int64), np.eye(2, dtype=np.int64) * 2)]
    return Progress(task=task, round=3, weights=torch.randn(7), numbers={"prior_head": 0.25}, tables=tables)


def test_everything_comes_back(tmp_path: Path) -> None:
    states: dict[int, State] = {
        3: {"exemplars": torch.arange(4), "count": 2, "note": "x", "rate": 0.5},
        9: {"exemplars": torch.arange(2)},
    }
    saved = progress()
    saved.best_weights, saved.best_loss, saved.best_numbers = torch.ones(7), 1.5, {"prior_head": 0.25}
    CheckpointFolder(tmp_path).save(saved, states, {3, 9}, {"events_size": 11})
    loaded = CheckpointFolder(tmp_path).load()
    assert loaded is not None
    back, back_states, manifest = loaded
    assert torch.equal(back.weights, saved.weights)
    assert back.best_weights is not None
    assert back.best_numbers == {"prior_head": 0.25}
    assert torch.equal(back.best_weights, saved.best_weights)
    assert (back.task, back.round, back.finished, back.best_loss) == (1, 3, False, 1.5)
    assert back.numbers == saved.numbers
    assert np.array_equal(back.tables[0].corrected, saved.tables[0].corrected)
    assert manifest["events_size"] == 11
    assert back_states[3]["count"] == 2
    assert back_states[3]["note"] == "x"
    assert back_states[3]["rate"] == 0.5
    assert torch.equal(back_states[9]["exemplars"], torch.arange(2))  # type: ignore[arg-type]


def test_only_changed_clients_are_written(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    states: dict[int, State] = {k: {"exemplars": torch.arange(1000) + k} for k in range(100)}
    folder.save(progress(), states, set(states), {})
    large = (tmp_path / "clients" / "00000001.safetensors").stat().st_size
    states[5] = {"exemplars": torch.arange(3)}
    folder.save(progress(), states, {5}, {})
    small = (tmp_path / "clients" / "00000002.safetensors").stat().st_size
    assert small < large / 50
    folder.save(progress(), states, set(), {})
    loaded = CheckpointFolder(tmp_path).load()
    assert loaded is not None
    assert len(loaded[1]) == 100
    assert torch.equal(loaded[1][5]["exemplars"], torch.arange(3))  # type: ignore[arg-type]
    assert torch.equal(loaded[1][6]["exemplars"], torch.arange(1000) + 6)  # type: ignore[arg-type]


def test_old_files_are_dropped_and_shards_stay_few(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    states: dict[int, State] = {k: {"value": k} for k in range(60)}
    for number in range(60):
        states[number] = {"value": -number}
        folder.save(progress(), states, {number}, {})
    assert len([p for p in tmp_path.iterdir() if p.name.isdigit()]) == 2
    assert len(list((tmp_path / "clients").iterdir())) <= 2 * MOST_SHARDS
    loaded = CheckpointFolder(tmp_path).load()
    assert loaded is not None
    assert all(loaded[1][k]["value"] == -k for k in range(60))


def test_the_manifest_is_readable(whole: Path) -> None:
    manifest = json.loads((newest(whole) / "manifest.json").read_text())
    assert manifest["position"] == {"task": 2, "round": 2, "finished": True}
