from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import fedfeat.algorithm.client
from fedfeat.algorithm.client import EXEMPLARS
from fedfeat.algorithm.held_out import hold_out
from fedfeat.algorithm.step import Seen
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.errors import ConfigError
from fedfeat.federation.progress import Progress
from fedfeat.methods.calibrate import Calibration
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset

BUDGET = {"budget": 60}
FEW = {"least": 1}  # the toy data hold out eight samples of old classes and three of new ones after the second task
pytestmark = pytest.mark.filterwarnings("ignore:calibrate. clients held out")


def run(folder: Path, method: str, **changes: Any) -> tuple[Experiment, Progress, dict[str, Any]]:
    if "calibrate" in method:
        changes["calibrate"] = {**FEW, **changes.get("calibrate", {})}
    experiment = Experiment(toy_config(method, scenario={**BUDGET}, **changes), toy_dataset())
    progress = Progress()
    result = experiment.run(RunFolder.create(folder, experiment.config, {}), progress, ())
    return experiment, progress, result


def test_a_fifth_of_the_old_and_as_many_of_the_new_are_held_out() -> None:
    old, new = np.repeat([0, 1, 2], [10, 5, 4]), np.repeat([3, 4], [40, 6])
    rng = np.random.default_rng(0)
    picked_old, picked_new = hold_out(old, new, 0.2, rng.permutation, rng.permutation)
    assert np.bincount(old[picked_old], minlength=3).tolist() == [2, 1, 0]
    assert np.bincount(new[picked_new], minlength=5)[3:].tolist() == [2, 1]


def test_classes_with_few_samples_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    picked_old, picked_new = hold_out(np.array([0] * 4), np.array([1, 1]), 0.2, rng.permutation, rng.permutation)
    assert len(picked_old) == len(picked_new) == 0


def test_held_out_samples_never_enter_a_batch(tmp_path: Path) -> None:
    experiment = Experiment(toy_config("fedcbdr+feat+calibrate", scenario=BUDGET), toy_dataset())
    engine = experiment.engine
    trained: dict[tuple[int, int], set[int]] = {}
    held: dict[tuple[int, int], set[int]] = {}
    images = engine.train_images
    augmented = images.augmented
    current = (-1, -1)
    make_client = engine.client

    def client(client_id: int) -> Any:
        nonlocal current
        made = make_client(client_id)
        current = (engine.task, client_id)
        held.setdefault(current, set(made.held_out.tolist()))
        afresh = replace(made, sets={})  # which remembers nothing
        assert set(made.held_out.tolist()) == set(afresh.held_out.tolist()) == held[current], "it changed in a task"
        return made

    def watched(indices: torch.Tensor, *rest: Any) -> torch.Tensor:
        trained.setdefault(current, set()).update(indices.tolist())
        return augmented(indices, *rest)

    engine.client, images.augmented = client, watched  # type: ignore[method-assign]
    experiment.run(RunFolder.create(tmp_path / "run", experiment.config, {}), Progress(), ())
    assert any(held[key] for key in held if key[0] > 0), "nothing was held out"
    assert all(not held[key] for key in held if key[0] == 0)
    for key, indices in trained.items():
        assert not indices & held[key]


@pytest.mark.parametrize("redraw", [True, False])
def test_exemplars_are_held_out_for_a_task_or_for_good(tmp_path: Path, redraw: bool) -> None:
    experiment = Experiment(
        toy_config("replay+calibrate", scenario={**BUDGET, "tasks": 3}, calibrate={"redraw": redraw}), toy_dataset()
    )
    engine, make_client = experiment.engine, experiment.engine.client
    held: dict[tuple[int, int], set[int]] = {}

    def client(client_id: int) -> Any:
        made = make_client(client_id)
        old = made.held_out[made.labels(made.held_out) < made.num_old]
        held[engine.task, client_id] = set(old.tolist())
        return made

    engine.client = client  # type: ignore[method-assign]
    experiment.run(RunFolder.create(tmp_path / "run", experiment.config, {}), Progress(), ())
    before, after = (set().union(*(held[task, k] for k in range(3))) for task in (1, 2))
    assert before
    assert (before <= after) is not redraw
    assert len(after) > len(before), "classes that have become old are held out, too"


def test_index_sets_are_worked_out_once_for_each_state_of_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def counted(*args: Any) -> Any:
        drawn.append(1)
        return hold_out(*args)

    monkeypatch.setattr(fedfeat.algorithm.client, "hold_out", counted)
    experiment, _, _ = run(tmp_path / "run", "replay+calibrate", train={"rounds": 4})
    assert len(drawn) == 3 * 2, "more than once for each of three clients in the second and the third task"
    engine = experiment.engine
    client = engine.client(0)
    assert engine.client(0).local_set is client.local_set
    before, kept = client.local_set, client.exemplars
    client.keep(kept[:7], instead=True)
    assert len(client.trained_exemplars) < 7 + 1
    assert set(client.local_set.tolist()) <= set(client.samples.tolist()) | set(kept[:7].tolist())
    assert len(client.local_set) < len(before)
    engine.begin_task(engine.task)
    assert engine.client(0).local_set is not client.local_set


def test_held_out_exemplars_go_back_to_the_buffer(tmp_path: Path) -> None:
    plain, _, _ = run(tmp_path / "a", "replay")
    held, _, _ = run(tmp_path / "b", "replay+calibrate")
    for client in range(3):
        ours, theirs = (e.engine.states[client][EXEMPLARS] for e in (plain, held))
        assert torch.equal(ours, theirs)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["fedcbdr+feat+calibrate", "fedcbdr+etf+calibrate", "fedcbdr+calibrate"])
def test_two_numbers_are_chosen_and_recorded(tmp_path: Path, method: str) -> None:
    _, progress, result = run(tmp_path / "run", method, train={"rounds": 4})
    assert 0 <= progress.numbers["gamma"] <= 1
    assert -20 <= progress.numbers["delta"] <= 20
    assert result["numbers"]["gamma"] == progress.numbers["gamma"]
    if "feat" not in method:
        assert progress.numbers["gamma"] == 0, "there is no gate to strengthen"


def choose_from(calibration: Calibration, reply: dict[str, torch.Tensor]) -> dict[str, float]:
    """Let the server choose, with one client's reply after the second of two tasks with two classes each."""
    server = SimpleNamespace(seen=Seen(1, 2, 4), progress=Progress())
    task_end = SimpleNamespace(server=server, weights=torch.zeros(1), quotas={0: 1})
    task_end.exchange = SimpleNamespace(gather=lambda *_: {0: reply})
    calibration.at_task_end(cast(TaskEnd, task_end))
    return server.progress.numbers


def calibration_of(method: str, **settings: Any) -> Calibration:
    experiment = Experiment(toy_config(method, calibrate=settings), toy_dataset())
    return next(step for step in experiment.method.task_end if isinstance(step, Calibration))


@pytest.mark.parametrize(
    ("best", "end"), [(-2, "-2 is the smallest"), (-1, None), (0, None), (1, None), (2, "2 is the largest")]
)
def test_an_offset_at_the_end_of_the_grid_is_said(recwarn: pytest.WarningsRecorder, best: int, end: str | None) -> None:
    calibration = calibration_of("fedcbdr+calibrate", linear_deltas=[0, 1, 2], least=5, rule="accuracy")
    assert calibration.deltas == (-2, -1, 0, 1, 2)
    right = torch.zeros(1, 5, 2, dtype=torch.int32)
    right[0, best + 2] = 4
    assert choose_from(calibration, {"right": right, "held_out": torch.tensor([5, 5])}) == {"gamma": 0, "delta": best}
    said = [str(w.message).partition(";")[0] for w in recwarn]
    assert said == ([f"calibrate: {end} offset that was tried, and the best"] if end else [])


@pytest.mark.parametrize("held_out", [(4, 5), (5, 4), (0, 0)])
def test_nothing_is_changed_with_fewer_samples_than_a_choice_needs(held_out: tuple[int, int]) -> None:
    calibration = calibration_of("fedcbdr+calibrate", linear_deltas=[0, 1], negative=False, least=5, rule="accuracy")
    reply = {"right": torch.tensor([[[0, 0], [4, 4]]]), "held_out": torch.tensor(held_out)}
    words = f"held out {held_out[0]} samples of old classes and {held_out[1]} of new ones, and 5 of each are needed"
    with pytest.warns(UserWarning, match=words):
        assert choose_from(calibration, reply) == {}
    with pytest.warns(UserWarning, match="held out 0 samples"):
        assert choose_from(calibration, {}) == {}
    reply["held_out"] = torch.tensor([5, 5])
    with pytest.warns(UserWarning, match="largest"):
        assert choose_from(calibration, reply) == {"gamma": 0, "delta": 1}


def test_no_correction_is_always_tried() -> None:
    settings = {"gammas": [0.5, 1.0], "deltas": [0.3, 0.1], "linear_deltas": [2.0]}
    assert calibration_of("fedcbdr+feat+calibrate", **settings).gammas == (0.0, 0.5, 1.0)
    assert calibration_of("fedcbdr+feat+calibrate", **settings).deltas == (-0.3, -0.1, 0.0, 0.1, 0.3)
    assert calibration_of("fedcbdr+calibrate", **settings, negative=False).deltas == (0.0, 2.0)
    assert calibration_of("fedcbdr+calibrate", **settings).gammas == (0.0,)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedcbdr+feat+calibrate", {"feat": {"logits": "raw"}}),
        ("fedcbdr+feat+calibrate", {"feat": {"logits": "cosine"}}),
        ("replay+calibrate", {}),
    ],
)
def test_the_loss_without_a_correction_is_that_of_the_logits_of_training(
    tmp_path: Path, method: str, changes: dict[str, Any]
) -> None:
    experiment, progress, result = run(tmp_path / "run", method, calibrate={"rule": "likelihood"}, **changes)
    assert {"up/count_held_out/held_out_loss", "up/count_held_out/held_out"} == {
        key for key in result["traffic"] if key.startswith("up/count_held_out/")
    }
    calibration = next(step for step in experiment.method.task_end if isinstance(step, Calibration))
    clients = [client for k in range(3) if len((client := experiment.engine.client(k)).held_out)]
    assert clients
    for client in clients:
        reply = calibration.count_held_out(client, {"weights": progress.weights, **progress.numbers})
        with torch.no_grad():
            outputs = client.network.eval()(client.images.plain(client.held_out))
        labels = client.labels(client.held_out)
        losses = torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="none")
        none = cast(torch.Tensor, reply["held_out_loss"])[0, calibration.deltas.index(0.0)]
        old = labels < client.num_old
        assert none.tolist() == pytest.approx([float(losses[old].sum()), float(losses[~old].sum())], rel=1e-4)


@pytest.mark.parametrize("vectorised", [1, 8])
@pytest.mark.parametrize("rule", ["accuracy", "likelihood"])
def test_it_works_on_top_of_a_balanced_loss_and_a_teacher(tmp_path: Path, rule: str, vectorised: int) -> None:
    method = "fedcbdr+etf+balanced+distil+calibrate"
    engine = {"device": "cpu", "vectorised": vectorised}
    _, progress, result = run(tmp_path / "run", method, calibrate={"rule": rule}, engine=engine, train={"rounds": 4})
    assert progress.numbers["gamma"] == 0
    assert result["numbers"]["delta"] == progress.numbers["delta"]
    assert result["accuracy_of_variants"] == {}
    table = progress.tables[-1]
    if progress.numbers["delta"] == 0:
        assert np.array_equal(table.corrected, table.plain)


def test_the_same_run_gives_three_figures(tmp_path: Path) -> None:
    _, progress, result = run(tmp_path / "run", "fedcbdr+feat+calibrate")
    assert set(result["accuracy_of_variants"]) == {"before calibration"}
    assert len(result["accuracy_of_variants"]["before calibration"]) == 3
    assert progress.tables[0].variants.keys() == {"before calibration"}


@pytest.mark.parametrize(("rule", "entry"), [("accuracy", "right"), ("likelihood", "held_out_loss")])
def test_only_sums_leave_a_client(tmp_path: Path, rule: str, entry: str) -> None:
    _, _, result = run(tmp_path / "run", "fedcbdr+feat+calibrate", calibrate={"rule": rule})
    up = {k: v for k, v in result["traffic"].items() if k.startswith("up/count_held_out/")}
    grid = 6 * (17 + 16)
    assert up[f"up/count_held_out/{entry}"] % (grid * 2 * 4) == 0
    assert set(up) == {f"up/count_held_out/{entry}", "up/count_held_out/held_out"}


def test_without_held_out_samples_the_papers_correction_is_used(tmp_path: Path) -> None:
    experiment = Experiment(toy_config("fedcbdr+feat+calibrate"), toy_dataset())  # 1 exemplar per class and client
    progress = Progress()
    experiment.run(RunFolder.create(tmp_path / "run", experiment.config, {}), progress, ())
    assert "gamma" not in progress.numbers
    assert np.array_equal(progress.tables[-1].corrected, progress.tables[-1].variants["before calibration"])


def test_a_base_without_exemplars_is_refused() -> None:
    with pytest.raises(ConfigError, match="keeps none"):
        toy_config("finetune+calibrate")
