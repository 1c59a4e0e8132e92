"""``fedfeat sweep`` and ``fedfeat compare`` as a user meets them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner, Result

from fedfeat.cli import app
from toy import toy_table, write_toy

pytestmark = pytest.mark.slow


@pytest.fixture
def sweep_file(toy_file: Path, tmp_path: Path) -> Path:
    table = toy_table(data={"path": str(toy_file)})
    table["sweep"] = {"methods": ["finetune", "replay"], "seeds": [1, 2]}
    path = tmp_path / "grid.toml"
    path.write_text(tomli_w.dumps(table))
    return path


def fedfeat(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_a_sweep_is_run_once_and_collected_into_one_table(sweep_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = fedfeat("sweep", sweep_file, "--out", out)
    assert first.exit_code == 0
    assert "4 done now" in first.output
    assert {"table.md", "table.csv", "report.html"} <= {p.name for p in out.iterdir()}
    assert (out / "table.csv").read_text().count("\n") == 3
    assert "4 done before" in fedfeat("sweep", sweep_file, "--out", out).output
    more = fedfeat("sweep", sweep_file, "--out", out, "--set", "train.lr=0.01")
    assert "4 done now" in more.output


def test_a_failure_is_reported_and_the_table_has_the_rest(sweep_file: Path, toy_file: Path, tmp_path: Path) -> None:
    places = f'settings = {{ "data.path" = ["gone.npz", "{toy_file}"] }}\nseeds = ['
    sweep_file.write_text(sweep_file.read_text().replace("seeds = [", places))
    done = fedfeat("sweep", sweep_file, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert done.output.count("failed: ") == 4
    assert "gone.npz" in done.output
    assert "4 done now, 4 failed" in done.output
    assert "4 of 8 runs failed; they will fail again until what was said above is changed" in done.output
    assert (tmp_path / "out" / "table.csv").read_text().count("\n") == 3


@pytest.mark.processes
@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_a_killed_sweep_is_continued(sweep_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep_file.write_text(sweep_file.read_text().replace("    1,\n    2,\n", "    1,\n"))
    options = ["--set", "train.rounds=12", "--out", str(out), "--workers", "2"]
    command = [sys.executable, "-m", "fedfeat", "sweep", str(sweep_file), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while process.poll() is None and len(list(out.glob("*/events.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None, "the sweep was over before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    begun = len(list(out.glob("*/config.toml")))
    assert begun >= 2
    _wait_until_free(out)
    done = fedfeat("sweep", sweep_file, *options[:4])
    assert done.exit_code == 0, done.output
    assert "2 done now" in done.output


def _wait_until_free(out: Path) -> None:
    """Workers whose sweep was killed end when they want to tell it something."""
    import fcntl

    for path in out.glob("*/.lock"):
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def test_own_data_sets_have_a_row_each(sweep_file: Path, toy_file: Path, tmp_path: Path) -> None:
    write_toy(tmp_path / "other.npz")
    grid = {
        "methods": ["finetune"],
        "seeds": [1],
        "settings": {"data.path": [str(toy_file), str(tmp_path / "other.npz")]},
    }
    sweep_file.write_text(tomli_w.dumps({**toy_table(), "sweep": grid}))
    done = fedfeat("sweep", sweep_file, "--out", tmp_path / "out")
    rows = (tmp_path / "out" / "table.csv").read_text().splitlines()[1:]
    assert len(rows) == 2
    for path in (toy_file, tmp_path / "other.npz"):
        assert f"finetune seed 1, data.path={path}: final accuracy" in done.output
        assert sum(f"data.path=\u2026/{path.name}" in row or f"/{path.name})" in row for row in rows) == 1
    assert {p.name.split("-path")[1].split("-seed")[0] for p in (tmp_path / "out").glob("*-path*")} == {"toy", "other"}


def test_per_gpu_without_a_gpu_is_one_sentence(sweep_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(Exception, match="there is no NVIDIA GPU on this machine; use --workers"):
        fedfeat("sweep", sweep_file, "--per-gpu", "2")


def test_compare_uses_the_same_store(sweep_file: Path, toy_file: Path, tmp_path: Path) -> None:
    config = tmp_path / "toy.toml"
    config.write_text(tomli_w.dumps(toy_table(data={"path": str(toy_file)})))
    base = ("compare", config, "--methods", "finetune,replay", "--seeds", "1", "--out", tmp_path / "out")
    assert "2 done now" in fedfeat(*base).output
    assert (tmp_path / "out" / "replay" / "seed1" / "result.json").is_file()
    assert "2 done before" in fedfeat(*base).output
    other = fedfeat(*base, "--set", "train.lr=0.2")
    assert other.exit_code == 1
    assert other.output.count("does not match the run begun here in train.lr") == 2
    assert "mean" not in other.output  # no table of runs that were not asked for
    elsewhere = fedfeat(*base, "--set", f"data.path={write_toy(tmp_path / 'other.npz')}")
    assert elsewhere.exit_code == 1
    assert elsewhere.output.count("does not match the run begun here in data.path") == 2
