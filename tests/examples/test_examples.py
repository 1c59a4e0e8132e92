"""Every script in ``examples`` runs as its docstring says, and prints what it promises."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedfeat.algorithm import registry
from fedfeat.config import make_config
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


def run(name: str, *arguments: object, folder: Path) -> str:
    """Run a script in an empty folder and return what it printed; it must leave nothing behind."""
    command = [sys.executable, str(FOLDER / name), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert list(folder.iterdir()) == []
    return done.stdout


def rows(text: str) -> dict[str, list[float]]:
    """Return the lines of a printed table that end in two or more numbers."""
    found = re.findall(r"^(\S.*?)((?: +-?\d+\.\d)+)$", text, re.MULTILINE)
    return {name: [float(number) for number in numbers.split()] for name, numbers in found}


def test_the_pieces_in_a_plain_loop(tmp_path: Path) -> None:
    table = rows(run("pieces_in_your_loop.py", folder=tmp_path))
    assert list(table) == ["linear classifier", "ETF + GSA", "ETF + GSA + EGC", "the same, chosen"]
    assert all(0 <= accuracy <= 100 for row in table.values() for accuracy in row)
    assert table["ETF + GSA"][2] > 50
    assert table["ETF + GSA + EGC"][0] > table["ETF + GSA"][0]  # EGC favours old classes
    assert table["ETF + GSA + EGC"][1] <= table["ETF + GSA"][1]


def test_images_that_the_script_draws_itself(tmp_path: Path) -> None:
    text = run("your_own_images.py", folder=tmp_path)
    accuracies = [float(a) for a in re.findall(r"after task \d: ([\d.]+) %", text)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 60
    named = re.findall(r"^(\w+)/000\.png: (\w+) \(\d+ %\)$", text, re.MULTILINE)
    assert {folder for folder, _ in named} == {"circle", "cross", "frame", "stripes", "square", "triangle"}
    assert sum(folder == said for folder, said in named) >= 4


def test_images_from_a_folder_of_your_own(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    for number, (image, label) in enumerate(zip(*toy_images(20, 3), strict=True)):
        (tmp_path / "mine" / f"class-{label}").mkdir(parents=True, exist_ok=True)
        image_module.fromarray(image[..., 0]).save(tmp_path / "mine" / f"class-{label}" / f"{number}.png")
    (tmp_path / "empty").mkdir()
    text = run("your_own_images.py", tmp_path / "mine", folder=tmp_path / "empty")
    assert {f"class-{c}" for c in range(6)} == set(re.findall(r"^(class-\d)/", text, re.MULTILINE))


def test_three_methods_compared(tmp_path: Path) -> None:
    table = rows(run("compare_methods.py", folder=tmp_path))
    assert list(table) == ["finetune", "replay", "replay+feat"]
    assert table["finetune"][4] < table["replay"][4] < table["replay+feat"][4]
    assert table["finetune"][0] == table["replay"][0]  # before anything can be replayed they are the same


def test_a_replay_rule_of_your_own(tmp_path: Path) -> None:
    table = rows(run("custom_replay_rule.py", folder=tmp_path))
    assert list(table) == ["replay", "herding", "far_apart"]
    assert all(accuracy > 50 for row in table.values() for accuracy in row)


def test_the_rule_takes_the_centre_first_and_then_what_is_farthest() -> None:
    order = runpy.run_path(str(FOLDER / "custom_replay_rule.py"))["far_apart_order"]
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


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_example_says_what_it_is_and_is_tested(name: str) -> None:
    tree = ast.parse((FOLDER / name).read_text())
    assert ast.get_docstring(tree)
    tested = "".join(p.read_text() for p in (FOLDER.parent / "tests").glob("*/test_*example*.py"))
    assert name in tested
