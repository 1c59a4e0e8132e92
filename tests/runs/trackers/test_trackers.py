"""Trackers hold what the run's own events say, read back with the trackers' own readers."""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from fedfeat.config.config import make_config
from fedfeat.core.settings import flatten
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment, Result
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.identity import deciding_settings
from fedfeat.runs.trackers import tracked
from fedfeat.runs.trackers.backends import Scalars, TrackedRun, tracking_uri
from fedfeat.runs.trackers.tracked import scalars, step_of
from toy import toy_dataset, toy_table, untimed

DATA = toy_dataset()
ROUNDS, TASKS = 2, 3


class Stop(Exception):
    pass


def table(trackers: dict[str, Any]) -> dict[str, Any]:
    # Checkpoints at the end of tasks only, so that a resumed run repeats a round that trackers have seen.
    return toy_table(method="herding+feat", tracker=trackers, run={"checkpoint_seconds": 1000})


def run(folder: Path, stop_at: tuple[int, int] | None = None, **trackers: object) -> Result:
    """Run the toy problem, or take it up from its last checkpoint; maybe stop after a round."""
    experiment = Experiment(make_config(table(trackers)), DATA)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "round" and (event["task"], event["round"]) == stop_at:
            raise Stop

    if not folder.exists():
        return experiment.run(RunFolder.create(folder, experiment.config, {}), Progress(), (stop,))
    opened = RunFolder.open(folder)
    loaded = opened.checkpoints.load()
    assert loaded is not None
    opened.cut_events(loaded[2]["events_size"])
    experiment.engine.restore(loaded[1])
    return experiment.run(opened, loaded[0], (stop,))


def expected(folder: Path) -> dict[str, dict[int, float]]:
    """Every number of the run's events by name and step."""
    curves: dict[str, dict[int, float]] = {}
    for event in RunFolder(folder).events():
        if event["event"] in ("round", "task"):
            for name, value in scalars(event).items():
                curves.setdefault(name, {})[step_of(event, ROUNDS)] = value
    return curves


def assert_tracked(found: dict[str, dict[int, float]], folder: Path, result: Result) -> None:
    wanted = expected(folder)
    assert {"round/losses/ce", "round/losses/gsa", "round/lr", "round/numbers/prior_head"} <= set(wanted)
    assert {"task/accuracy", "task/accuracy_uncorrected", "task/per_task/1"} <= set(wanted)
    curves = {name: found[name] for name in found if not name.startswith("result/")}
    assert set(curves) == set(wanted)
    for name, curve in wanted.items():
        assert curves[name] == {step: pytest.approx(value, rel=1e-6) for step, value in curve.items()}, name
    assert found["result/final_accuracy"] == {ROUNDS * TASKS: pytest.approx(result["final_accuracy"], rel=1e-6)}


def read_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), purge_orphaned_data=True).Reload()
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


def read_wandb(folder: Path) -> dict[str, dict[int, float]]:
    import json

    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    curves: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                for name, value in items.items():
                    if not name.startswith("_"):
                        curves.setdefault(name, {})[record.history.step.num] = value
    return curves


def read_mlflow(where: Path) -> tuple[Any, dict[str, dict[int, float]]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking_uri(str(where)))
    (experiment,) = [e for e in client.search_experiments() if e.name == "fedfeat"]
    (found,) = client.search_runs([experiment.experiment_id])
    history = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    return found, {name: {m.step: m.value for m in metrics} for name, metrics in history.items()}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for trackers as long as a busy machine needs."""
    monkeypatch.setattr(tracked, "PATIENCE", 300.0)


def test_tensorboard_holds_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = run(tmp_path / "run", tensorboard=True)
    assert_tracked(read_tensorboard(tmp_path / "run"), tmp_path / "run", result)


def test_tensorboard_goes_on_after_a_resume_without_doubling(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(Stop):
        run(tmp_path / "run", (2, 2), tensorboard=True)
    time.sleep(1.1)  # event files are named after the second they were made in
    result = run(tmp_path / "run", tensorboard=True)
    assert_tracked(read_tensorboard(tmp_path / "run"), tmp_path / "run", result)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("round/lr")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_wandb_holds_every_number_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with pytest.raises(Stop):
        run(tmp_path / "run", (2, 2), wandb="toys")
    result = run(tmp_path / "run", wandb="toys")
    assert_tracked(read_wandb(tmp_path / "run"), tmp_path / "run", result)
    parts = list((tmp_path / "run").glob("wandb/offline-run-*/run-*.wandb"))
    assert len(parts) == 2
    assert len({part.name for part in parts}) == 1  # two parts of one run, which 'wandb sync' joins by this id


@pytest.mark.slow
def test_mlflow_holds_every_number_in_one_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    where = tmp_path / "tracking"
    with pytest.raises(Stop):
        run(tmp_path / "run", (2, 2), mlflow=str(where))
    found, _ = read_mlflow(where)
    assert found.info.status == "KILLED"
    result = run(tmp_path / "run", mlflow=str(where))
    found, curves = read_mlflow(where)
    assert found.info.status == "FINISHED"
    assert_tracked(curves, tmp_path / "run", result)
    settings = flatten(make_config(table({"mlflow": str(where)})).to_table())
    assert found.data.params == {key: str(value) for key, value in settings.items()}
    assert found.data.params["feat.gsa.lambda"] == "0.1"


class Failing:
    """A tracker that fails at one moment, or hangs."""

    moment = ""

    def __init__(self, run: TrackedRun) -> None:
        self.at("open")

    def log(self, step: int, values: Scalars) -> None:
        self.at("log")

    def close(self, finished: bool) -> None:
        self.at("close")

    def at(self, moment: str) -> None:
        if self.moment == "hang":
            time.sleep(3)
        if moment == self.moment:
            raise RuntimeError("the tracker\nis down")


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(tmp_path_factory.mktemp("untracked") / "run")


@pytest.mark.parametrize("moment", ["open", "log", "close", "hang"])
def test_a_failing_tracker_is_dropped_with_one_warning(
    moment: str, untracked: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Failing, "moment", moment)
    monkeypatch.setattr(tracked, "PATIENCE", 0.5)
    monkeypatch.setitem(tracked.OPENERS, "wandb", Failing)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run(tmp_path / "run", wandb="toys")
    assert untimed(result) == untimed(untracked)
    said = [str(w.message) for w in caught if "tracker" in str(w.message)]
    assert len(said) == 1
    assert said[0].startswith("tracker.wandb: left out from here on, the run goes on (")
    assert ("the tracker is down" if moment != "hang" else "seconds after the run") in said[0]


def test_one_failing_tracker_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(Failing, "moment", "log")
    monkeypatch.setitem(tracked.OPENERS, "wandb", Failing)
    with pytest.warns(UserWarning, match=r"tracker\.wandb"):
        result = run(tmp_path / "run", wandb="toys", tensorboard=True)
    assert_tracked(read_tensorboard(tmp_path / "run"), tmp_path / "run", result)


@pytest.mark.parametrize(
    ("name", "value", "module"),
    [
        ("tensorboard", True, "torch.utils.tensorboard.writer"),
        ("wandb", "toys", "wandb"),
        ("mlflow", "folder", "mlflow"),
    ],
)
def test_a_missing_package_is_named_and_the_run_goes_on(
    name: str, value: object, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.warns(UserWarning, match=rf"tracker\.{name}.*pip install 'fedfeat\[{name}\]'"):
        assert run(tmp_path / "run", **{name: value})["final_accuracy"] > 0


def test_trackers_are_off_by_default_and_no_part_of_a_result(tmp_path: Path) -> None:
    run(tmp_path / "run")
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert not names & {"mirror.json", "tensorboard", "wandb"}
    plain, tracked_too = (make_config(toy_table(method="replay", tracker=m)) for m in ({}, {"wandb": "toys"}))
    assert deciding_settings(plain) == deciding_settings(tracked_too)


def test_scalars_of_an_event() -> None:
    event = {
        "event": "task",
        "task": 2,
        "accuracy": 50,
        "per_task": [40.0, 60.0],
        "head_tail": {"head": 60.0, "tail": None},
        "energies": {"bins": [1, 2, 3], "prior": 0.5},
        "client_losses": {"0": 1.0},
        "late": True,
    }
    assert scalars(event) == {
        "task/accuracy": 50.0,
        "task/per_task/1": 40.0,
        "task/per_task/2": 60.0,
        "task/head_tail/head": 60.0,
        "task/energies/prior": 0.5,
    }
    assert step_of(event, 10) == 20
    assert step_of(event, 0) == 2
    assert step_of({"event": "round", "task": 2, "round": 3}, 10) == 13


def test_mlflow_takes_addresses_and_folders(tmp_path: Path) -> None:
    for address in ("http://localhost:5000", "sqlite:////data/mlflow.db"):
        assert tracking_uri(address) == address
    assert tracking_uri(str(tmp_path / "a b")) == f"sqlite:///{tmp_path}/a b/mlflow.db"
    assert (tmp_path / "a b").is_dir()
