"""Folders that an earlier version left behind: read, resumed, reported; a sweep finds nothing left to do.

``folders`` was written by version 0.1.0 at commit a41946d, whose settings were called ``engine.together`` and
``[mirror]``: a finished run, one that was killed in its second task, and a sweep. ``expected`` is what that version
made of the killed run itself.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedfeat import cli
from fedfeat.api import CheckpointError, load_config, load_dataset, load_trained, resume
from fedfeat.config.renamed import BEFORE
from fedfeat.runs.folder import RunFolder
from toy import untimed
from toy_runs import saved

FOLDERS = Path(__file__).parent / "folders"
EXPECTED = FOLDERS / "expected"
RENAMED = ("engine.together is called engine.vectorised now", "mirror is called tracker now")
# Kinds of processors differ in the last bits of float32, and training carries these on.
TOLERANCE = 1e-3

pytestmark = pytest.mark.filterwarnings("ignore:.* is called .* now")


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDERS, tmp_path / "folders"))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def rounds(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in events if event["event"] == "round"]


def test_old_settings_are_understood_with_a_sentence_each(folders: Path) -> None:
    with pytest.warns(UserWarning, match=RENAMED[0]) as told:
        config = RunFolder.open(folders / "finished").config()
    sentences = [str(warning.message) for warning in told]
    assert all(any(s.endswith(renamed) for s in sentences) for renamed in RENAMED)
    assert config.engine.vectorised == 1
    assert not config.tracker.tensorboard


def test_a_finished_run_is_read_and_its_model_predicts_what_it_did(folders: Path) -> None:
    path = folders / "finished"
    result = read(path / "result.json")
    assert resume(path) == result, "nothing is left to do"
    digits = load_dataset(load_config(path / "config.toml").data)
    model = load_trained(path)
    labels = np.array([model.class_names.index(digits.class_names[c]) for c in digits.test_labels])
    for correction, key in (("egc", "final_accuracy"), ("none", "final_accuracy_uncorrected")):
        right = model.predict(digits.test_images, correction).labels.numpy() == labels
        assert 100 * right.mean() == pytest.approx(result[key], abs=0.25)  # of 445 images one may lie on the edge


def test_a_killed_run_ends_as_it_would_have(folders: Path) -> None:
    path = folders / "killed"
    result = resume(path)
    expected = read(EXPECTED / "result.json")
    known = {k: v for k, v in untimed(expected).items() if k not in ("numbers", "config")}
    assert {k: result[k] for k in known} == known
    assert result["numbers"] == pytest.approx(expected["numbers"], abs=TOLERANCE)
    weights = load_file(EXPECTED / "weights.safetensors")["weights"]
    np.testing.assert_allclose(saved(path).weights.numpy(), weights, atol=TOLERANCE)
    ours, theirs = rounds(path / "events.jsonl"), rounds(EXPECTED / "events.jsonl")
    assert [(e["task"], e["round"]) for e in ours] == [(e["task"], e["round"]) for e in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one["losses"] == pytest.approx(other["losses"], abs=TOLERANCE)
        assert (one["bytes_up"], one["bytes_down"]) == (other["bytes_up"], other["bytes_down"])


def test_a_setting_that_decides_the_result_cannot_change_in_an_old_run(folders: Path) -> None:
    config = folders / "killed" / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.05", "lr = 0.06"))
    with pytest.raises(CheckpointError, match=r"does not match the run begun here in train\.lr;"):
        resume(folders / "killed")


def test_old_runs_are_reported(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.app(["report", str(folders / "finished"), str(folders / "sweep"), "--csv"], standalone_mode=False)
    table = capsys.readouterr().out
    found = sorted(read(p)["final_accuracy"] for p in folders.rglob("*/result.json") if "expected" not in p.parts)
    assert len(found) == 3
    for accuracy in found:
        assert f"{accuracy}"[:8] in table
    page = (folders / "report.html").read_text()
    for method in ("fedcbdr+feat", "replay+feat", "finetune"):
        assert method in page


def test_an_old_sweep_finds_nothing_left_to_do(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it asks for what was done then; what is done otherwise today would be another run."""
    runs = {p: p.stat().st_mtime_ns for p in sorted((folders / "sweep").rglob("result.json"))}
    arguments = ["sweep", str(folders / "tiny-sweep.toml"), "--out", str(folders / "sweep")]
    arguments += [word for key, value in BEFORE.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    cli.app(arguments, standalone_mode=False)
    assert "2 done before" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in sorted((folders / "sweep").rglob("result.json"))} == runs
