"""Every script in ``examples`` runs as its docstring says, and prints what it promises."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedfeat.algorithm import registry
from fedfeat.config.config import make_config
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_dataset, toy_images, toy_table

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = {p.name for p in FOLDER.glob("*.py")}


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    parts = dict(registry.PARTS)
    yield
    registry.PARTS.clear()
    registry.PARTS.update(parts)


class Runner:
    """Runs scripts in an empty folder, on less than they would take by themselves."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys

    def __call__(self, name: str, *arguments: object, smaller: Callable[[Any], None] = lambda script: None) -> str:
        """Return what a script printed; it must warn of nothing and leave nothing behind."""
        script = load(name)
        smaller(script)
        self.monkeypatch.chdir(self.folder)
        self.monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            script.main()
        printed = self.capsys.readouterr()
        assert printed.err == ""
        assert list(self.folder.iterdir()) == []
        return printed.out


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    (tmp_path / "empty").mkdir()
    return Runner(tmp_path / "empty", monkeypatch, capsys)


def load(name: str) -> ModuleType:
    """Import a script without running it."""
    spec = importlib.util.spec_from_file_location(f"example_{Path(name).stem}", FOLDER / name)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def rows(text: str) -> dict[str, list[float]]:
    """Return the lines of a printed table that end in two or more numbers."""
    found = re.findall(r"^(\S.*?)((?: +-?\d+\.\d)+)$", text, re.MULTILINE)
    return {name: [float(number) for number in numbers.split()] for name, numbers in found}


def one_short_seed(script: Any) -> None:
    script.EPOCHS = 12
    compare = cache(script.compare)
    script.compare = lambda seed: compare(0)


@pytest.mark.slow
def test_the_pieces_in_a_plain_loop(run: Runner) -> None:
    table = rows(run("pieces_in_your_loop.py", smaller=one_short_seed))
    assert list(table) == ["linear classifier", "ETF + GSA", "ETF + GSA + EGC", "the same, chosen"]
    assert all(0 <= accuracy <= 100 for row in table.values() for accuracy in row)
    assert table["ETF + GSA"][2] > 50
    assert table["ETF + GSA + EGC"][0] > table["ETF + GSA"][0]  # EGC favours old classes
    assert table["ETF + GSA + EGC"][1] <= table["ETF + GSA"][1]


@pytest.mark.slow
def test_images_that_the_script_draws_itself(run: Runner) -> None:
    text = run("your_own_images.py")
    accuracies = [float(a) for a in re.findall(r"after task \d: ([\d.]+) %", text)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 60
    named = re.findall(r"^(\w+)/000\.png: (\w+) \(\d+ %\)$", text, re.MULTILINE)
    assert {folder for folder, _ in named} == {"circle", "cross", "frame", "stripes", "square", "triangle"}
    assert sum(folder == said for folder, said in named) >= 4


def test_images_from_a_folder_of_your_own(run: Runner, tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    for number, (image, label) in enumerate(zip(*toy_images(20, 3), strict=True)):
        (tmp_path / "mine" / f"class-{label}").mkdir(parents=True, exist_ok=True)
        image_module.fromarray(image[..., 0]).save(tmp_path / "mine" / f"class-{label}" / f"{number}.png")
    text = run("your_own_images.py", tmp_path / "mine", smaller=with_rounds(1))
    assert {f"class-{c}" for c in range(6)} == set(re.findall(r"^(class-\d)/", text, re.MULTILINE))


def with_rounds(rounds: int) -> Callable[[Any], None]:
    """Let a script train for fewer rounds."""

    def smaller(script: Any) -> None:
        make = script.make_config
        script.make_config = lambda table: make({**table, "train": {**table["train"], "rounds": rounds}})

    return smaller


def one_seed(script: Any) -> None:
    script.SEEDS = (0,)


@pytest.mark.slow
def test_three_methods_compared(run: Runner) -> None:
    table = rows(run("compare_methods.py", smaller=one_seed))
    assert list(table) == ["finetune", "replay", "replay+feat"]
    assert table["finetune"][4] < table["replay"][4] < table["replay+feat"][4]
    assert table["finetune"][0] == table["replay"][0]  # before anything can be replayed they are the same


@pytest.mark.slow
def test_a_replay_rule_of_your_own(run: Runner) -> None:
    table = rows(run("custom_replay_rule.py", smaller=with_rounds(1)))
    assert list(table) == ["replay", "herding", "far_apart"]
    assert all(accuracy > 30 for row in table.values() for accuracy in row)


@pytest.mark.processes
def test_a_script_runs_by_itself(tmp_path: Path) -> None:
    """Its last line calls main, as that of every script that has one."""
    for name in SCRIPTS:
        text = (FOLDER / name).read_text()
        assert ("def main(" in text) == text.endswith('if __name__ == "__main__":\n    main()\n'), name
    command = [sys.executable, str(FOLDER / "your_own_images.py"), str(tmp_path / "nothing")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing" in done.stderr


def test_the_rule_takes_the_centre_first_and_then_what_is_farthest() -> None:
    order = load("custom_replay_rule.py").far_apart_order
    points = torch.tensor([[0.0], [1.0], [10.0], [4.0]])
    assert order(points, 4).tolist() == [3, 2, 0, 1]
    assert order(points, 2).tolist() == [3, 2]
    assert order(points[:1], 5).tolist() == [0]


def test_the_rule_is_a_plugin_and_keeps_to_the_budget(tmp_path: Path) -> None:
    plugin = str(FOLDER / "custom_replay_rule.py")
    config = make_config({**toy_table(method="far_apart+feat"), "plugins": [plugin]})
    experiment = Experiment(config, toy_dataset())
    experiment.run(RunFolder.create(tmp_path / "run", config, {}), Progress(), ())
    kept = [len(state["exemplars"]) for state in experiment.engine.states.values()]  # type: ignore[arg-type]
    assert 0 < sum(kept) <= 2 * 6  # a budget of six after each of the first two tasks
    assert max(kept) <= 2 * 2


def test_every_example_says_what_it_is_and_is_tested() -> None:
    tested = "".join(p.read_text() for p in (FOLDER.parent / "tests").rglob("test_*example*.py"))
    for name in SCRIPTS:
        assert ast.get_docstring(ast.parse((FOLDER / name).read_text())), name
        assert name in tested
