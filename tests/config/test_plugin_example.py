"""The documented example: the document shows the file, its commands work, and a run remembers its plugin."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfeat import cli
from fedfeat.algorithm.step import Step
from fedfeat.config.config import load_config, make_config
from fedfeat.config.plugins import forget, load_plugins
from fedfeat.core.errors import CheckpointError, ConfigError
from fedfeat.methods import PARTS
from fedfeat.runs.contract.compare import final_weights
from fedfeat.runs.contract.hold import PROMISES
from fedfeat.runs.experiment import resume, start
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.identity import deciding_settings
from fedfeat.runs.sweep.planned import Planned, stored
from toy import toy_table, untimed, write_toy

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "my_method.py"
DOCUMENT = (ROOT / "docs" / "write-your-own-method.md").read_text()
QUICK = ["--set", "scenario.tasks=2", "--set", "train.rounds=1", "--set", "train.local_epochs=1"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if str(EXAMPLE.relative_to(ROOT)) in line]


def call(*arguments: str | Path) -> None:
    cli.app([str(a) for a in arguments], standalone_mode=False)


def test_the_document_shows_the_whole_example() -> None:
    assert EXAMPLE.read_text() in blocks("python")
    assert len(EXAMPLE.read_text().splitlines()) < 70


@pytest.mark.docs
def test_the_first_command_with_the_example_trains_with_both_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests of the documents run the others."""
    monkeypatch.chdir(ROOT)
    program, *arguments = shlex.split(COMMANDS[0])
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
    return whole == run and final_weights(folder / "whole") == final_weights(folder / "run")


@pytest.mark.processes
def test_a_new_process_resumes_without_being_told_of_the_plugin(interrupted: Path) -> None:
    command = [sys.executable, "-m", "fedfeat", "resume", str(interrupted / "run")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert same_outcome(interrupted)


def test_a_run_taken_elsewhere_brings_its_plugin_and_tells_no_place(
    interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (interrupted / "mine.py").write_text(EXAMPLE.read_text().replace("square()", "abs()"))  # its author went on
    shutil.move(interrupted / "run", interrupted / "elsewhere" / "run")
    (entry,) = tomllib.loads((interrupted / "elsewhere" / "run" / "config.toml").read_text())["plugins"]
    assert re.fullmatch("plugins/mine.py@sha256:[0-9a-f]{64}", entry)
    forget()
    monkeypatch.chdir(interrupted)
    call("resume", "elsewhere/run")
    shutil.move(interrupted / "elsewhere" / "run", interrupted / "run")
    assert same_outcome(interrupted)


def test_a_run_folder_from_before_finds_its_plugin_where_it_was_or_in_its_folder(interrupted: Path) -> None:
    config = interrupted / "run" / "config.toml"
    config.write_text(config.read_text().replace('"plugins/mine.py@', f'"{interrupted}/mine.py@'))
    shutil.rmtree(interrupted / "run" / "plugins")
    assert load_config(config).method == "unsure+compact"
    (interrupted / "mine.py").rename(interrupted / "run" / "mine.py")
    resume(interrupted / "run")
    assert same_outcome(interrupted)


def test_two_plugins_of_one_name_are_both_kept(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        text = EXAMPLE.read_text().replace('"unsure"', f'"{name}"').replace('"compact"', f'"{name}-compact"')
        (tmp_path / name / "same.py").write_text(text)
    config = make_config({"plugins": ["first/same.py", "second/same.py"], "method": "second"}, folder=tmp_path)
    folder = RunFolder.create(tmp_path / "run", config, {})
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(tmp_path / "second")
    assert deciding_settings(folder.config()) == deciding_settings(config)


def test_a_changed_plugin_is_refused_also_with_another_checksum(interrupted: Path) -> None:
    changed = EXAMPLE.read_text().replace("square()", "abs()")
    (interrupted / "run" / "plugins" / "mine.py").write_text(changed)
    with pytest.raises(ConfigError, match=r"mine.py changed since the run began") as refused:
        resume(interrupted / "run")
    assert "version" not in str(refused.value)
    config = interrupted / "run" / "config.toml"
    config.write_text(re.sub("@sha256:[0-9a-f]+", "", config.read_text()))
    forget()
    with pytest.raises(CheckpointError, match="does not match the run begun here in plugins"):
        resume(interrupted / "run")


def test_a_plugin_that_was_edited_is_another_experiment_in_the_same_folder(interrupted: Path) -> None:
    (interrupted / "mine.py").write_text(EXAMPLE.read_text().replace("square()", "abs()"))
    table = toy_table(method="unsure+compact", data={"path": str(interrupted / "toy.npz")}, plugins=["mine.py"])
    found = stored(Planned(make_config(table, folder=interrupted), interrupted / "run"))
    assert found is not None
    assert found.lasting
    assert "does not match the run begun here in plugins" in (found.error or "")


def test_a_mistake_in_a_plugin_is_one_line_and_exit_code_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.py").write_text("import torch\n\ntorch.nosuch\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command sets its own
    monkeypatch.setattr(sys, "argv", ["fedfeat", "run", "digits", "--plugin", "bad.py", "--out", "run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: plugin {tmp_path / 'bad.py'}, line 3: AttributeError: ")
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


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


@pytest.mark.docs
@pytest.mark.parametrize(
    ("name", "promise"), [("margin", "device"), ("first", "budget"), ("hits", "sends"), ("half_way", "resume")]
)
def test_the_parts_of_the_document_keep_their_promises(name: str, promise: str, tmp_path: Path) -> None:
    (block,) = (b for b in blocks("python") if f'@addon("{name}"' in b or f'@base("{name}"' in b)
    (tmp_path / "shown.py").write_text(block)
    call("check", tmp_path / "shown.py", "--only", promise)


def test_the_document_names_every_field_of_a_step_and_every_promise() -> None:
    assert [field for field in Step._fields if f"| `{field}` |" not in DOCUMENT] == []
    table = DOCUMENT.partition("| it checks |")[2].partition("\n\n")[0]
    assert {word for row in re.findall(r"^\| (`.+?) \|", table, re.M) for word in re.findall("`(.+?)`", row)} == {
        *PROMISES
    }
