"""Records of runs: written from a folder or a result, small, read back exactly, and refused when damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paper_records import MakeRecord

from fedfeat.core.errors import FedfeatError
from fedfeat.runs import folder as folder_module
from fedfeat.runs.experiment import start
from fedfeat.runs.folder import UNKNOWN, checkout_commit
from fedfeat_reproduction import read_record, read_records, record, write_record
from fedfeat_reproduction.records import record_of_run, records_of_runs
from toy import toy_config, write_toy

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    start(toy_config("fedcbdr+feat+calibrate", data={"path": str(write_toy(folder / "toy.npz"))}), folder / "run")
    return folder / "run"


def test_a_record_keeps_accuracies_and_leaves_out_what_is_bulky(run: Path, tmp_path: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    kept = record_of_run(run, "lossless")
    path = write_record(kept, tmp_path)
    again = json.loads(path.read_text())
    for key in ("final_accuracy", "accuracy_after_task", "forgetting", "seconds"):
        assert again[key] == pytest.approx(result[key], rel=1e-7)
    for mine, theirs in zip(again["accuracy_matrix"], result["accuracy_matrix"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-7)
    assert list(again["accuracy_matrix_of_variants"]) == list(result["accuracy_of_variants"]) == ["before calibration"]
    assert again["traffic"] == result["traffic"]
    assert again["config"] == result["config"]
    assert "confusion" not in again
    assert again["images"] == "lossless"
    seen = json.loads((run / "env.json").read_text())
    assert again["environment"] == {key: value for key, value in seen.items() if key != "platform"}
    assert path.stat().st_size < 8000
    assert path.name.startswith("npz-3-beta0.5-k3-fedcbdr+feat+calibrate-seed7-")


def test_what_is_written_is_read_back_and_written_again_to_the_same_bytes(run: Path, tmp_path: Path) -> None:
    path = write_record(record_of_run(run), tmp_path)
    first = path.read_bytes()
    assert write_record(read_record(path), tmp_path) == path
    assert path.read_bytes() == first


def test_small_settings_survive(make_record: MakeRecord, tmp_path: Path) -> None:
    kept = make_record("fedcbdr+feat", 70.0, overrides=("feat.egc.eps=1.23456789e-8",))
    assert read_record(write_record(kept, tmp_path)).config == kept.config


def test_a_record_from_a_result_knows_this_machine_and_commit(run: Path) -> None:
    kept = record(json.loads((run / "result.json").read_text()), images="lossless", commit="c0ffee")
    assert kept.environment["torch"]
    assert kept.commit == "c0ffee"


def test_the_commit_of_a_checkout_is_twelve_digits_or_unknown() -> None:
    commit = checkout_commit()
    assert commit == UNKNOWN or len(commit.removesuffix("+")) == 12


def test_a_repository_around_an_installed_package_is_not_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "venv" / "folder.py"
    installed.parent.mkdir()
    installed.touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "mine"]):
        subprocess.run([*git, *command], check=True)
    monkeypatch.setattr(folder_module, "__file__", str(installed))
    assert checkout_commit.__wrapped__() == UNKNOWN
    monkeypatch.setenv("FEDFEAT_COMMIT", "c0ffee123456")
    assert checkout_commit.__wrapped__() == "c0ffee123456", "sources that travelled without their repository"
    monkeypatch.delenv("FEDFEAT_COMMIT")
    subprocess.run([*git, "add", "venv/folder.py"], check=True)
    assert checkout_commit.__wrapped__() != UNKNOWN


def test_an_unfinished_run_has_no_record(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes((run / "config.toml").read_bytes())
    with pytest.raises(FedfeatError, match="the run has not finished"):
        record_of_run(tmp_path)


def test_runs_are_found_up_to_two_levels_down(run: Path, tmp_path: Path) -> None:
    for folder in (run, run.parent):
        records, damaged = records_of_runs([folder])
        assert (len(records), damaged) == (1, [])
    assert records_of_runs([tmp_path]) == ([], [])
    assert read_records(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("change", "said"),
    [({"final_accuracy": 170.0}, "final_accuracy: Input should be less than"), ({"config": None}, "config")],
)
def test_a_damaged_record_is_refused_by_field(
    change: dict[str, object], said: str, make_record: MakeRecord, tmp_path: Path
) -> None:
    path = write_record(make_record("fedcbdr", 60.0), tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FedfeatError, match=said):
        read_records(tmp_path)


@pytest.mark.processes
def test_records_and_the_store_need_no_package_of_the_command_line() -> None:
    """A machine with a GPU may have PyTorch and little else."""
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'sklearn', 'matplotlib', 'pyarrow', 'ray'): sys.modules[name] = None\n"
        "import fedfeat.runs.sweep, fedfeat_reproduction.results, fedfeat_reproduction.experiments\n"
        "from fedfeat_reproduction import record, write_record\n"
        "print(record.__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "record\n", done.stderr


def test_the_records_of_this_project_are_as_the_program_writes_them(tmp_path: Path) -> None:
    paths = sorted((ROOT / "results").glob("*.json"))
    assert paths
    for path in paths:
        written = write_record(read_record(path), tmp_path)
        assert written.name == path.name
        assert written.read_bytes() == path.read_bytes()
