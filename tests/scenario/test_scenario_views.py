"""What people see of a scenario: plain data, text, picture, command."""

import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from fedfeat.core.errors import MissingExtra
from fedfeat.report.scenario import draw_scenario, print_scenario
from fedfeat.scenario import ScenarioSettings


def text_of(scenario, names=None) -> str:
    console = Console(file=io.StringIO(), width=80)
    print_scenario(scenario, names, console)
    return console.file.getvalue()


def test_record_tells_who_holds_what(make, names):
    scenario = make(tasks=3, class_order="legacy", seed=2023, joins={"4": 2}, participation=2)
    record = json.loads(json.dumps(scenario.to_json(names)))
    assert record["class_order"][0] == {"id": 0, "label": 8, "name": "ship"}
    first, last = record["tasks"][0], record["tasks"][2]
    assert (first["task"], first["classes"]) == (1, ["ship", "bird", "dog"])
    assert (first["present"], first["participants_per_round"], first["samples"]) == (4, 2, 600)
    assert [row["client"] for row in first["clients"]] == [0, 1, 2, 3]
    for row in last["clients"]:
        assert row["counts"] == scenario.counts(2)[row["client"], 6:].tolist()
    assert last["samples_per_client"]["max"] == scenario.splits[2].sizes.max()
    assert ScenarioSettings(**record["settings"]) == scenario.settings


def test_record_without_names_uses_labels(make):
    assert make(class_order="natural").to_json()["tasks"][0]["classes"] == ["0", "1"]


def test_text_contains_the_numbers(make, names):
    scenario = make(joins={"4": 3}, participation=0.5, budget=303)
    text = text_of(scenario, names)
    assert all(name in text for name in names)
    assert "75-76" in text
    assert "60-61" in text
    for task in range(5):
        counts = scenario.counts(task)
        for client in scenario.present(task):
            assert f"{counts[client].sum()} ({(counts[client] > 0).sum()})" in text
    assert "…" not in text
    assert [line.split()[1:3] for line in text.splitlines() if line.strip().startswith("4 ")][-1] == [
        "-",
        "-",
    ]


def test_text_sums_up_many_clients(make):
    scenario = make(clients=50, min_samples=0)
    text = text_of(scenario)
    sizes = scenario.splits[1].sizes
    assert f"{sizes.min()} / {np.median(sizes):g} / {sizes.max()}" in text
    assert len(text.splitlines()) < 40


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "tasks"), [(3, 3), (41, 6), (5, 1)])
def test_picture_is_a_real_picture(make, names, tmp_path, clients, tasks):
    image = pytest.importorskip("matplotlib.image")
    target = tmp_path / "new" / "scenario.png"
    late = {"1": 2} if tasks > 1 else {}
    draw_scenario(make(clients=clients, tasks=tasks, min_samples=0, joins=late), target, names)
    assert target.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    pixels = image.imread(target)
    assert pixels.shape[0] > 200
    assert pixels.shape[1] > 500
    colours = np.unique((pixels[..., :3] * 255).astype(np.int64) @ [1 << 16, 1 << 8, 1])
    assert len(colours) > 50


@pytest.mark.filterwarnings("error")
def test_class_names_are_not_read_as_formulas(make, tmp_path):
    pytest.importorskip("matplotlib")
    draw_scenario(make(), tmp_path / "a.png", ["a_$x^{$", "$", "猫", *(f"${c}" for c in range(7))])
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_picture_shows_the_split(make, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    for seed in (1, 2):
        draw_scenario(make(seed=seed, tasks=2, class_order="natural"), tmp_path / f"{seed}.png")
    one, two = (image.imread(tmp_path / f"{seed}.png") for seed in (1, 2))
    assert one.shape != two.shape or np.mean(np.abs(one - two)) > 0.01


def test_picture_without_matplotlib_says_what_to_install(make, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"fedfeat\[plots\]"):
        draw_scenario(make(), tmp_path / "a.png")


@pytest.fixture
def command(monkeypatch, names):
    """Run ``scenario show`` with stand-ins for the config file and the data set."""
    seen = {}

    def load_config(path, overrides):
        seen.update(path=path, overrides=overrides)
        return SimpleNamespace(data="digits", scenario=ScenarioSettings(tasks=3), seed=4)

    def load_dataset(settings, *, seed):
        seen.update(data=settings, seed=seed)
        labels = np.tile(np.arange(10), 50)
        return SimpleNamespace(train_labels=labels, num_classes=10, class_names=names, domains=None)

    for name, function in (("fedfeat.config.config", load_config), ("fedfeat.data", load_dataset)):
        monkeypatch.setattr(f"{name}.{function.__name__}", function)
    from fedfeat.cli import app

    arguments = ["scenario", "show"]
    return lambda *args: (CliRunner().invoke(app, [*arguments, *map(str, args)], catch_exceptions=False), seen)


def test_command_prints_the_scenario(command):
    result, seen = command("exp.toml", "--set", "scenario.beta=0.1", "--set", "seed=4")
    assert result.exit_code == 0
    assert "10 classes in 3 tasks over 5 clients" in result.output
    assert seen["overrides"] == ["scenario.beta=0.1", "seed=4"]
    assert (seen["path"].name, seen["data"], seen["seed"]) == ("exp.toml", "digits", 4)


def test_command_prints_json_and_nothing_else(command, tmp_path):
    pytest.importorskip("matplotlib")
    result, _ = command("exp.toml", "--json", "--png", tmp_path)
    assert json.loads(result.stdout)["seed"] == 4
    assert (tmp_path / "scenario-exp.png").stat().st_size > 10_000
    assert "scenario-exp.png" in result.stderr


def test_command_draws_only_when_asked(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("exp.toml")
    assert list(tmp_path.iterdir()) == []


def test_class_names_are_not_read_as_markup(make):
    assert "[red]" in text_of(make(), [f"[red]{c}" for c in range(10)])
