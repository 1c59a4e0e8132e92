"""Bad input: one sentence, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from PIL import Image

from fedfeat import cli
from fedfeat.config.config import load_config
from fedfeat.core.files import DiskError, write_atomically
from fedfeat.runs.experiment import Experiment
from toy import toy_images, toy_table, write_toy

CodeAndText = tuple[int, str]


@pytest.fixture
def fedfeat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., CodeAndText]:
    def call(*arguments: str | Path) -> CodeAndText:
        monkeypatch.setattr(sys, "argv", ["fedfeat", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0), capsys.readouterr().err

    return call


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    write_toy(tmp_path / "toy.npz")
    table = toy_table(method="fedcbdr+feat", data={"path": str(tmp_path / "toy.npz")})
    (tmp_path / "toy.toml").write_text(tomli_w.dumps(table))
    return tmp_path / "toy.toml"


def assert_one_sentence(outcome: CodeAndText, *words: str) -> None:
    code, text = outcome
    assert code == 2
    lines = [line for line in text.strip().splitlines() if line]
    assert len(lines) == 1, text
    assert lines[0].startswith("error: ")
    assert "Traceback" not in text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"


BAD_SETTINGS = [
    ("method=fedcbrd+feat", ("fedcbrd", "did you mean 'fedcbdr'")),
    ("method=fedav", ("did you mean 'fedavg'",)),
    ("method=feat", ("'feat' is an add-on", "fedcbdr")),
    ("method=fedcbdr+refed", ("'refed'", "is a base method")),
    ("method=fedcbdr+egc", ("egc needs the ETF head", "base+etf+egc")),
    ("method=fedcbdr+gsa", ("gsa needs the ETF head",)),
    ("method=finetune+feat", ("exemplars", "fedcbdr+feat")),
    ("method=fedcbdr+feat+feat", ("twice",)),
    ("train.lrr=0.1", ("unknown key 'train.lrr'", "did you mean 'lr'")),
    ("lr=0.1", ("--set: unknown key 'lr'; did you mean 'train.lr'?",)),
    ("epochs=2", ("did you mean 'train.local_epochs'?",)),
    ("feat.lambda=2", ("did you mean 'feat.gsa.lambda'?",)),
    ("train.beta=1", ("did you mean 'scenario.beta'?",)),
    ("zzz=1", ("known: ",)),
    (
        "scenario.participation=0",
        ("--set: scenario.participation: participation as a number must be at least 1, got 0\n",),
    ),
    ("plugins=x.py", ("--set: plugins: input should be a list, got 'x.py'",)),
    ("trian.lr=0.1", ("unknown key 'trian'", "did you mean 'train'")),
    ("feat.gsa.lamda=1", ("feat.gsa.lamda", "did you mean 'lambda'")),
    ("feat.gsa.tau=0", ("feat.gsa.tau", "greater than 0", "got 0")),
    ("feat.egc.rho=1.5", ("feat.egc.rho", "1.5")),
    ("train.lr=fast", ("train.lr", "'fast'")),
    ("data.cutout=true", ("--set: data.cutout: input should be a number, got true\n",)),
    ("data=3", ("--set: data: input should be a table, got 3\n",)),
    ("train.lr=inf", ("train.lr", "finite number", "got inf")),
    ("train.lr=nan", ("train.lr", "got nan")),
    ("scenario.beta=inf", ("scenario.beta", "finite number")),
    ("feat.gsa.lambda=inf", ("feat.gsa.lambda", "finite number")),
    ("train.lr_min=1.0", ("lr_min", "must not exceed lr")),
    ("scenario.tasks=7", ("7", "6 classes")),
    ("scenario.participation=9", ("participation", "9")),
    ("scenario.partition=dirichle", ("scenario.partition",)),
    ("data.name=cifar11", ("cifar11", "cifar10")),
    ("engine.device=cuda:77", ("engine.device", "cuda:77")),
    ("engine.device=tpu-ish", ("engine.device",)),
    ("engine.threads=100000", ("engine.threads", "less than or equal to 1024")),
    ("model.width=4", ("as many feature dimensions as classes",)),
    ("no-equals-sign", ("KEY=VALUE",)),
]


@pytest.mark.parametrize(("setting", "words"), BAD_SETTINGS, ids=[s for s, _ in BAD_SETTINGS])
def test_a_bad_setting(
    fedfeat: Callable[..., CodeAndText], toy: Path, tmp_path: Path, setting: str, words: tuple[str, ...]
) -> None:
    classes = ["--set", f"data.path={_many_classes(tmp_path)}"] if "width" in setting else []
    assert_one_sentence(fedfeat("run", toy, "--set", setting, *classes, "--out", tmp_path / "run"), *words)
    assert not (tmp_path / "run").exists()


def _many_classes(folder: Path) -> Path:
    labels = np.repeat(np.arange(12), 4)
    images = np.random.default_rng(0).integers(0, 255, (48, 8, 8, 1)).astype(np.uint8)
    np.savez(folder / "twelve.npz", x=images, y=labels, xt=images, yt=labels)
    return folder / "twelve.npz"


def test_all_problems_are_named_at_once(fedfeat: Callable[..., CodeAndText], toy: Path) -> None:
    outcome = fedfeat("run", toy, "--set", "train.lr=-1", "--set", "scenario.bta=1", "--set", "feat.egc.rho=3")
    assert_one_sentence(outcome, "train.lr", "scenario.bta", "feat.egc.rho")


def test_files_that_are_not_there_or_not_toml(fedfeat: Callable[..., CodeAndText], tmp_path: Path) -> None:
    assert_one_sentence(fedfeat("run", tmp_path / "no.toml"), "no such configuration file")
    assert_one_sentence(fedfeat("run", "cifar10-55"), "did you mean 'cifar10-5'")
    (tmp_path / "bad.toml").write_text("method = [")
    assert_one_sentence(fedfeat("run", tmp_path / "bad.toml"), "not a valid TOML file")
    assert_one_sentence(fedfeat("resume", tmp_path), "not a run folder")
    assert_one_sentence(fedfeat("report", tmp_path), str(tmp_path))
    (tmp_path / "config.toml").write_text("[yesterday]\nmode = 1\n")
    assert_one_sentence(fedfeat("resume", tmp_path), "unknown key 'yesterday'", "another version", str(tmp_path))


def test_a_wrong_policy_is_told_before_a_federation_is_put_up(
    fedfeat: Callable[..., CodeAndText], toy: Path, tmp_path: Path
) -> None:
    (tmp_path / "policy.toml").write_text("most_update = 3\n")
    outcome = fedfeat("federate", toy, "--policy", tmp_path / "policy.toml", "--out", tmp_path / "run")
    assert_one_sentence(outcome, "unknown key 'most_update'", "did you mean 'most_updates'")
    assert not (tmp_path / "run").exists()


def test_a_sweep_file_given_to_run_points_to_sweep(fedfeat: Callable[..., CodeAndText], tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("[sweep]\nseeds = [0, 1]\n")
    assert_one_sentence(fedfeat("run", tmp_path / "grid.toml"), f"'fedfeat sweep {tmp_path / 'grid.toml'}'")


def test_a_file_and_set_are_blamed_for_their_own_mistakes(fedfeat: Callable[..., CodeAndText], toy: Path) -> None:
    toy.write_text(toy.read_text().replace("rounds = 2", "rounds = 0", 1))
    _, text = fedfeat("run", toy, "--set", "train.batch=0")
    assert f"{toy}: train.rounds: " in text
    assert "--set: train.batch: " in text


def test_groups_of_an_odd_width(fedfeat: Callable[..., CodeAndText], toy: Path, tmp_path: Path) -> None:
    settings = ("--set", "model.norm=group", "--set", "model.width=9", "--out", tmp_path / "run")
    assert_one_sentence(fedfeat("run", toy, *settings), "model.width", "even", "got 9", "take 10")
    assert not (tmp_path / "run").exists()


def test_a_batch_of_one_image_that_cannot_be_normalised_is_told_before(
    fedfeat: Callable[..., CodeAndText], toy: Path, tmp_path: Path
) -> None:
    images = np.zeros((36, 8, 8, 1), dtype=np.uint8)  # eight pixels are one after resnet18's three strides
    labels = np.repeat(np.arange(4), 9)
    np.savez(tmp_path / "few.npz", x=images, y=labels, xt=images, yt=labels)
    sets = [f"data.path={tmp_path / 'few.npz'}", "model.name=resnet18", "method=finetune", "scenario.partition=iid"]
    sets += ["scenario.tasks=2", "scenario.clients=2", "train.batch=8"]
    words = [word for setting in sets for word in ("--set", setting)]
    code, text = fedfeat("run", toy, *words, "--out", tmp_path / "run")
    warned, _, said = text.partition("error: ")
    assert warned.startswith("warning: train.batch: ")
    assert "client 0 in task 1 and 3 more; choose another train.batch (now 8), or set model.norm = 'group'\n" in warned
    assert_one_sentence((code, f"error: {said}"), "train.batch: a batch of one image", "model.norm = 'group'")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for setting in ("train.batch=9", "model.norm=group"):
            Experiment(load_config(toy, [*sets, setting]))


def test_bad_data(fedfeat: Callable[..., CodeAndText], toy: Path, tmp_path: Path) -> None:
    def run(path: Path, name: str = "npz") -> CodeAndText:
        sets = ("--set", f"data.path={path}", "--set", f"data.name={name}")
        return fedfeat("run", toy, *sets, "--out", tmp_path / "run")

    images, labels = toy_images(4, 0)
    np.savez(tmp_path / "labels.npz", x=images, y=labels - 1, xt=images, yt=labels)
    assert_one_sentence(run(tmp_path / "labels.npz"), "-1")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "labels.npz").read_bytes()[:200])
    assert_one_sentence(run(tmp_path / "torn.npz"), "torn.npz")
    assert_one_sentence(run(tmp_path / "nowhere.npz"), "does not exist")
    (tmp_path / "empty").mkdir()
    assert_one_sentence(run(tmp_path / "empty", "folder"), "empty")
    for side, name in ((8, "a.png"), (8, "b.png"), (8, "c.png"), (8, "d.png"), (8, "e.png"), (9, "f.png")):
        for label in ("cat", "dog"):
            path = tmp_path / "mixed" / label / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((side, side, 3), 9, np.uint8)).save(path)
    assert_one_sentence(run(tmp_path / "mixed", "folder"), "8x8", "9x9")
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverges_says_so(fedfeat: Callable[..., CodeAndText], toy: Path, tmp_path: Path) -> None:
    sets = ("--set", "method=fedcbdr", "--set", "train.lr=1e30")
    assert_one_sentence(
        fedfeat("run", toy, *sets, "--out", tmp_path / "run"), "diverged", "of client 0 is nan", "lower train.lr"
    )


def test_a_full_disk_keeps_what_was_finished(
    fedfeat: Callable[..., CodeAndText], toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    real = os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert_one_sentence(fedfeat("run", toy, "--out", tmp_path / "run"), "disk is full", "is kept")
    assert not list((tmp_path / "run").rglob("*.tmp"))
    monkeypatch.setattr(os, "fsync", real)
    monkeypatch.setattr(sys, "argv", ["fedfeat", "resume", str(tmp_path / "run")])
    cli.app(["resume", str(tmp_path / "run")], standalone_mode=False)
    assert (tmp_path / "run" / "result.json").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full(fedfeat: Callable[..., CodeAndText], toy: Path, small_disk: Path) -> None:
    assert_one_sentence(fedfeat("run", toy, "--out", small_disk / "run"), "disk is full")


def test_an_unwritable_place(fedfeat: Callable[..., CodeAndText], toy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_one_sentence(fedfeat("run", toy, "--out", tmp_path / "file" / "run"), "not a folder")
    assert_one_sentence(fedfeat("run", toy, "--out", "/proc/fedfeat/run"), "/proc/fedfeat")


def test_a_folder_where_a_file_is_to_be(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(DiskError, match=r"/report\.html: cannot be written, a folder of that name is in the way"):
        write_atomically(tmp_path / "report.html", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.processes
def test_a_real_process_exits_with_two(toy: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedfeat", "run", str(toy), "--set", "method=nope", "--out", str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: method: no method or add-on is called 'nope'")
