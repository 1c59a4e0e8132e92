"""Damage on disk is noticed and what is whole is used: flipped bits, cut files, leftovers, a reader at work."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch

from fedfeat.core.errors import CheckpointError
from fedfeat.core.payload import State
from fedfeat.engines.flower.codec import pack
from fedfeat.engines.flower.roster import read_roster
from fedfeat.engines.flower.store import Store
from fedfeat.federation.progress import Progress
from fedfeat.runs.checkpoint import CheckpointFolder
from fedfeat.runs.experiment import resume, start
from fedfeat.runs.model_file import model_path, read_model
from toy import toy_config, untimed, write_toy


def flip(path: Path, place: int = -5) -> None:
    """Flip one bit."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def two_checkpoints(folder: Path) -> CheckpointFolder:
    """Two checkpoints that share the file of a state that did not change between them."""
    kept = CheckpointFolder(folder)
    states: dict[int, State] = {0: {"exemplars": torch.arange(50)}}
    for touched in ({0}, set[int]()):
        kept.save(Progress(weights=torch.ones(3)), states, touched, {})
    return kept


def test_a_flipped_bit_in_a_file_that_both_checkpoints_need_voids_neither(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    flip(tmp_path / "clients" / "00000001.safetensors")
    with pytest.warns(UserWarning, match="damaged.*copy"):
        loaded = CheckpointFolder(tmp_path).load()
    assert loaded is not None
    assert torch.equal(loaded[1][0]["exemplars"], torch.arange(50))  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["[]", "null", "3", '"text"', "{}", ""])
def test_a_manifest_of_another_kind_is_damage_and_not_a_traceback(tmp_path: Path, content: str) -> None:
    folder = two_checkpoints(tmp_path)
    (tmp_path / "00000002" / "manifest.json").write_text(content)
    folder._clean(keep_ends=True)
    with pytest.warns(UserWarning, match="damaged"):
        loaded = CheckpointFolder(tmp_path).load()
    assert loaded is not None
    assert CheckpointFolder(tmp_path).peek() is not None


@pytest.mark.parametrize("content", ["[]", "null", '{"run": 3}', "{"])
def test_a_damaged_roster_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "federation.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"federation\.json: damaged"):
        read_roster(tmp_path)


def test_a_reader_removes_nothing_beside_a_writer(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    (tmp_path / "00000003").mkdir()  # is being written: its manifest comes last
    (tmp_path / "00000003" / "server.safetensors").write_bytes(b"half")
    assert CheckpointFolder(tmp_path).load() is not None
    assert (tmp_path / "00000003").exists()
    assert CheckpointFolder(tmp_path).load(alone=True) is not None
    assert not (tmp_path / "00000003").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run with its models."""
    folder = tmp_path_factory.mktemp("run")
    data = {"path": str(write_toy(folder / "toy.npz"))}
    start(toy_config("finetune", data=data, train={"rounds": 1}, run={"keep_models": True}), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_events_that_are_not_those_of_the_checkpoint_are_told(run: Path, tmp_path: Path, damage: str) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "result.json").unlink()
    events = copy / "events.jsonl"
    if damage == "cut":
        events.write_bytes(events.read_bytes()[:200])
    else:
        flip(events, 30)
    with pytest.warns(UserWarning, match=r"events\.jsonl is not as it was at the checkpoint"):
        result = resume(copy)
    assert untimed(result) == untimed(json.loads((run / "result.json").read_text()))


def test_a_damaged_model_file_is_refused(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    assert read_model(copy, 0).finished
    flip(model_path(copy, 0))
    with pytest.raises(CheckpointError, match="not a whole model file"):
        read_model(copy, 0)


def test_what_a_kill_left_behind_is_removed_when_the_run_goes_on(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (newest, *_) = (copy / "checkpoint").glob("0*")
    left = [copy / ".result.json.77.tmp", newest / ".manifest.json.77.tmp"]
    for path in left:
        path.write_bytes(b"half")
    resume(copy)
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("damaged", ["journal.json", "journal.checked.json", "object"])
def test_a_flipped_bit_in_a_clients_store_costs_nothing(tmp_path: Path, damaged: str) -> None:
    store, pool = Store(tmp_path), torch.arange(5)
    for round in range(2):
        store.commit((0, round), "train", "r", pack({}), {"pool": pool, "note": "x"}, {})
    name = store.now.tensors["pool"]
    if damaged == "object":
        flip(tmp_path / "objects" / name)
    else:
        content = (tmp_path / damaged).read_text().replace('"generation": 1', '"generation": 9')
        (tmp_path / damaged).write_text(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Store(tmp_path)
    assert (again.generation, again.state["note"]) == (1, "x")
    assert torch.equal(again.state["pool"], pool)  # type: ignore[arg-type]
