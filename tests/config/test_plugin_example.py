"""The documented example: the document shows the file, its commands work, and a run remembers its plugin."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from contract import test_contract as contract
from fedfeat import cli
from fedfeat.config import load_config, make_config
from fedfeat.config.plugins import load_plugins
from fedfeat.core.errors import CheckpointError, ConfigError
from fedfeat.methods import PARTS
from fedfeat.runs.experiment import resume, start
from toy import toy_table, untimed, write_toy

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "my_method.py"
DOCUMENT = (ROOT / "docs" / "write-your-own-method.md").read_text()
QUICK = ["--set", "scenario.tasks=2", "--set", "train.rounds=1", "--set", "train.local_epochs=1"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def call(*arguments: str | Path) -> None:
    cli.app([str(a) for a in arguments], standalone_mode=False)


def test_the_document_shows_the_whole_example() -> None:
    assert blocks("python") == [EXAMPLE.read_text()]
    assert len(EXAMPLE.read_text().splitlines()) < 70


@pytest.mark.docs
def test_the_first_command_of_the_document_trains_with_both_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests of the documents run the others."""
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(blocks("sh")[0].splitlines()[0])
    assert program == "fedfeat"
    call(*arguments, *QUICK, "--out", tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["method"] == "unsure+compact"
    assert len(result["accuracy_after_task"]) == 2
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    assert "compact" in next(event["losses"] for event in events if event["event"] == "round")


def test_the_configuration_in_the_document_is_valid(tmp_path: Path) -> None:
    table = next(b for b in blocks("ini") if "plugins" in b)
    (tmp_path / "mine.toml").write_text(table)
    shutil.copy(EXAMPLE, tmp_path)
    method = load_config(tmp_path / "mine.toml").build_method()
    assert [(t.name, t.weight) for t in method.terms] == [("compact", 0.2)]
    package = tomllib.loads(next(b for b in blocks("ini") if "entry-points" in b))
    assert list(package["project"]["entry-points"]) == ["fedfeat.methods"]


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A run with a plugin that stopped after the first task, and its uninterrupted twin in ``whole``."""
    write_toy(tmp_path / "toy.npz")
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    table = toy_table(method="unsure+compact", data={"path": str(tmp_path / "toy.npz")}, plugins=["mine.py"])
    config = make_config(table, folder=tmp_path)
    start(config, tmp_path / "whole")

    def stop(event: Mapping[str, Any]) -> None:
        if event["event"] == "task":
            raise Interrupted

    with pytest.raises(Interrupted):
        start(config, tmp_path / "run", (stop,))
    return tmp_path


def same_outcome(folder: Path) -> bool:
    whole, run = (untimed(json.loads((folder / n / "result.json").read_text())) for n in ("whole", "run"))
    return whole == run and contract.final_weights(folder / "whole") == contract.final_weights(folder / "run")


@pytest.mark.processes
def test_a_new_process_resumes_without_being_told_of_the_plugin(interrupted: Path) -> None:
    command = [sys.executable, "-m", "fedfeat", "resume", str(interrupted / "run")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert same_outcome(interrupted)


def test_a_run_taken_elsewhere_finds_its_plugin_in_its_folder(interrupted: Path) -> None:
    (interrupted / "mine.py").rename(interrupted / "run" / "mine.py")
    resume(interrupted / "run")
    assert same_outcome(interrupted)


def test_a_changed_plugin_is_refused_also_with_another_checksum(interrupted: Path) -> None:
    changed = EXAMPLE.read_text().replace("square()", "abs()")
    (interrupted / "mine.py").write_text(changed)
    with pytest.raises(ConfigError, match=r"mine.py changed since the run began") as refused:
        resume(interrupted / "run")
    assert "version" not in str(refused.value)
    config = interrupted / "run" / "config.toml"
    config.write_text(re.sub("@sha256:[0-9a-f]+", "", config.read_text()))
    with pytest.raises(CheckpointError, match=r"does not match .* in plugins"):
        resume(interrupted / "run")


@pytest.mark.processes
def test_a_mistake_in_a_plugin_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import torch\n\ntorch.nosuch\n")
    command = ["run", "digits", "--plugin", "bad.py", "--out", "run"]
    done = subprocess.run([sys.executable, "-m", "fedfeat", *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: plugin {tmp_path / 'bad.py'}, line 3: AttributeError: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_example_holds_to_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_plugins([str(EXAMPLE)], ROOT, reserved=())
    monkeypatch.setattr(contract, "toy_config", _config_with_example)
    contract.hold("unsure+compact", tmp_path)


def _config_with_example(method: str, **changes: Any) -> Any:
    return make_config(toy_table(method=method, plugins=[str(EXAMPLE)], **changes))


def test_the_examples_loss_by_hand() -> None:
    load_plugins([str(EXAMPLE)], ROOT, reserved=())
    term = PARTS["compact"].build(PARTS["unsure"].build(None), PARTS["compact"].settings()).terms[0]
    spread = sys.modules[PARTS["compact"].settings.__module__].spread
    # Class 0: (0, 0) and (2, 0), mean (1, 0), squared distances 1 + 1; class 1 alone: 0. Six numbers in all.
    features = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 7.0]])
    assert float(spread(features, torch.tensor([0, 0, 1]))) == pytest.approx(2 / 6)
    assert (term.name, term.weight) == ("compact", 0.1)


def test_a_result_names_the_plugin_without_its_place_on_this_machine(interrupted: Path) -> None:
    result = json.loads((interrupted / "whole" / "result.json").read_text())
    (entry,) = result["config"]["plugins"]
    assert re.fullmatch("mine.py@sha256:[0-9a-f]{64}", entry)
