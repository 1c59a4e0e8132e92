"""What runs say of the time that is left: on the terminal, in a log, on the live page."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from fedfeat.cli.progress import SweepProgress
from fedfeat.report.collect import find_runs
from fedfeat.report.watch import live_data
from fedfeat.runs import remaining
from fedfeat.runs.experiment import start
from fedfeat.runs.remaining import duration, seconds_left
from fedfeat.runs.sweep import Planned
from toy import toy_config, write_toy


def test_a_round_counts_as_many_times_as_its_task_has_images() -> None:
    done = [(1, 2.0), (1, 2.0)]  # 100 images a round
    assert seconds_left(done, [100, 50, 100], 2, (1, 2)) == pytest.approx(2 * 1.0 + 2 * 2.0)
    assert seconds_left(done[:1], [100, 50], 2, (1, 1)) == pytest.approx(2.0 + 2 * 1.0)
    assert seconds_left([(3, 7.0)], [1, 1, 1], 2, (3, 2)) == 0.0
    assert seconds_left([(2, 4.0)], [0, 0], 3, (2, 1)) == 8.0, "nobody knows how many images there are"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10 s"), (59.6, "1 min"), (3570, "1 h 00 min"), (7500, "2 h 05 min"), (2e5, "2 d 8 h")],
)
def test_times_are_told_in_their_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_many_runs_tell_where_they_are_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(remaining.time, "monotonic", lambda: now[0])
    config = toy_config("finetune")
    runs = [Planned(config, Path(name)) for name in "abc"]
    log = io.StringIO()
    progress = SweepProgress(Console(file=log, width=200), {run.path: f"run {run.path}" for run in runs})
    begun = {
        "event": "start",
        "dataset": "toy",
        "tasks": 3,
        "rounds": 2,
        "device": "cpu",
        "aggregation": "",
        "notes": [],
    }
    progress(runs[0], {**begun, "resumed_at": None, "images": [10, 10, 10]})
    now[0] = 20.0
    progress(runs[0], {"event": "round", "task": 1, "round": 1})
    assert log.getvalue().splitlines()[-1] == (
        "[1/3] run a: task 1/3 round 1/2, 2 min left, in all about 6 min left"  # 100 s, and two runs of 120 s
    )
    progress(runs[0], {"event": "task", "task": 1, "accuracy": 50.0})
    now[0] = 40.0
    progress(runs[0], {"event": "round", "task": 2, "round": 2})
    told = "[1/3] run a: task 2/3 round 2/2, accuracy 50.00 % after task 1, 40 s left, in all about 3 min left"
    assert log.getvalue().splitlines()[-1] == told


def test_the_live_page_tells_what_is_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    start(toy_config("finetune", data={"path": str(write_toy(tmp_path / "toy.npz"))}), run)
    (run / "result.json").unlink()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    rounds = [event | {"seconds": 30.0} for event in events if event["event"] == "round"]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in rounds[:3]))
    (line,) = live_data(find_runs([run]))["progress"]
    assert line["text"].startswith("task 2 of 3, round 1 of 2, ")
    assert line["text"].endswith(" images/s, about 2 min left")
