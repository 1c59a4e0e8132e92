"""The wheel is whole: both packages with their data, and commands that work with the required packages alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
PACKAGES = {"fedfeat": ROOT / "src", "fedfeat_reproduction": ROOT / "reproduction"}
SHORT = ["method=finetune", "scenario.tasks=2", "scenario.clients=2", "train.rounds=1", "train.local_epochs=1"]
COMMANDS = {
    "list": ["paper", "list"],
    "show": ["paper", "show", "table-main"],
    "choices": ["paper", "show", "choices", "--format", "csv"],
    "data": ["run", "cifar10-5", "--out", "cifar"],
    "run": ["run", "digits", "--out", "short", *(word for change in SHORT for word in ("--set", change))],
    "record": ["paper", "record", "short", "--images", "built in"],
    "figures": ["paper", "figures", "figure-8"],
    "bench": ["bench", "gpu"],
}
# Runs every command in one process, for starting PyTorch takes longer than all of them.
LAUNCH = """
import contextlib, io, json, sys
site, missing, commands = json.load(sys.stdin)
sys.path.insert(0, site)
sys.modules.update(dict.fromkeys(missing))
from fedfeat.cli import main
assert "fedfeat_reproduction" not in sys.modules
found = {}
for name, arguments in commands.items():
    sys.argv, code = ["fedfeat", *arguments], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    found[name] = (code, out.getvalue(), err.getvalue())
import fedfeat, fedfeat_reproduction
assert all(package.__file__.startswith(site) for package in (fedfeat, fedfeat_reproduction))
json.dump(found, sys.stdout)
"""


class Said(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*build, "--wheel-dir", str(folder), str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def said(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """What the commands say in an empty folder, without the packages of any extra, a checkout or data."""
    site, folder = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("empty")
    wheel.extractall(site)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FEDFEAT_", "PYTHON"))}
    asked = json.dumps([str(site), _packages_of_extras(wheel), COMMANDS])
    done = subprocess.run(
        [sys.executable, "-I", "-c", LAUNCH],
        input=asked,
        cwd=folder,
        env={**kept, "FEDFEAT_HOME": str(folder / "home"), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [p.name.split("-")[0] for p in (folder / "results").iterdir()] == ["digits"]
    return {name: Said(*told) for name, told in json.loads(done.stdout).items()}


def _required(wheel: zipfile.ZipFile) -> set[tuple[str, str]]:
    """Return the packages that the wheel needs, each with the extra that it belongs to."""
    metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))).decode()
    found = re.findall(r"^Requires-Dist: ([\w.-]+)(?:.*extra == '(\w+)')?", metadata, re.MULTILINE)
    return {(name.lower(), extra) for name, extra in found}


def _packages_of_extras(wheel: zipfile.ZipFile) -> list[str]:
    """Return the names under which packages are imported that only an extra for users brings."""
    optional = {name for name, extra in _required(wheel) if extra not in ("", "dev", "docs")}
    assert {"matplotlib", "pillow", "flwr"} <= optional
    return [name for name, owners in packages_distributions().items() if optional & {o.lower() for o in owners}]


def test_it_holds_every_file_of_both_packages(wheel: zipfile.ZipFile) -> None:
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {
        path.relative_to(above).as_posix()
        for name, above in PACKAGES.items()
        for path in (above / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == files
    assert {Path(name).suffix for name in inside} >= {".csv", ".toml", ".mplstyle", ".html", ".css", ".js"}


def test_the_extra_paper_brings_what_figures_need(wheel: zipfile.ZipFile) -> None:
    assert {("matplotlib", "paper"), ("pillow", "paper"), ("pyarrow", "paper")} <= _required(wheel)


def test_the_paper_is_shown_without_records_and_the_reader_is_told(said: dict[str, Said]) -> None:
    assert said["list"].code == said["show"].code == said["choices"].code == 0
    assert all(name in said["list"].out for name in ("table-main", "figure-10", "choices"))
    assert "70.19 ± 1.8" in said["show"].out
    assert said["show"].err == "results: no record is there, so only published values are shown\n"
    assert said["choices"].out.startswith("choice,instead,")


def test_a_preset_asks_for_its_data_in_one_sentence(said: dict[str, Said]) -> None:
    assert said["data"].code == 2
    assert "fedfeat data get cifar10" in said["data"].err
    assert said["data"].err.count("\n") == 1


def test_a_run_is_made_and_recorded(said: dict[str, Said]) -> None:
    assert (said["run"].code, said["record"].code) == (0, 0), (said["run"].err, said["record"].err)
    assert said["record"].out.startswith("results/digits-2-")


def test_what_is_not_installed_is_one_sentence(said: dict[str, Said]) -> None:
    assert said["figures"].code == said["bench"].code == 2
    assert "pip install 'fedfeat[paper]'" in said["figures"].err
    assert "benchmarks are not part of an installation" in said["bench"].err
    assert "Traceback" not in said["figures"].err + said["bench"].err
