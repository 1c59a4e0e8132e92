"""A trained model from a run's folder predicts what the run itself counted, without its data set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedfeat.config.config import make_config
from fedfeat.core.errors import CheckpointError, ConfigError, FedfeatError
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment, resume
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.model_file import model_path
from fedfeat.runs.trained import Trained, load_trained
from toy import each_part_once, toy_dataset, toy_table

DATA = toy_dataset()


def run(folder: Path, method: str, *, keep: bool = True, **changes: object) -> tuple[Experiment, Progress]:
    table = toy_table(method=method, run={"keep_models": keep}, **changes)
    experiment, progress = Experiment(make_config(table), DATA), Progress()
    experiment.run(RunFolder.create(folder, experiment.config, {}), progress, ())
    return experiment, progress


def confusion(trained: Trained, experiment: Experiment, correction: str) -> np.ndarray:
    labels = experiment.scenario.internal_labels(DATA.test_labels)
    known = labels < trained.seen.num_classes
    predicted = trained.predict(DATA.test_images[known], correction).labels.numpy()
    table = np.zeros((trained.seen.num_classes,) * 2, dtype=np.int64)
    np.add.at(table, (labels[known], predicted), 1)
    return table


# Calibration corrects EGC's logits in one of them, and the plain ones here.
@pytest.mark.slow
@pytest.mark.parametrize("method", [*each_part_once(), "fedcbdr+calibrate"])
def test_every_part_predicts_what_its_run_counted_after_every_task(method: str, tmp_path: Path) -> None:
    experiment, progress = run(tmp_path / "run", method, scenario={"budget": 60}, train={"rounds": 1})
    for task, tables in enumerate(progress.tables):
        trained = load_trained(tmp_path / "run", task)
        assert trained.seen == (task, 2 * task, 2 * task + 2)
        np.testing.assert_array_equal(confusion(trained, experiment, "none"), tables.plain)
        np.testing.assert_array_equal(confusion(trained, experiment, "own"), tables.corrected)
    last = load_trained(tmp_path / "run")
    assert last.finished
    assert last.class_names == tuple(f"square-{c}" for c in experiment.scenario.class_order)
    np.testing.assert_array_equal(confusion(last, experiment, "own"), progress.tables[-1].corrected)


@pytest.mark.parametrize("growth", ["nested", "redraw", "preallocated"])
def test_the_etf_is_that_of_the_task(growth: str, tmp_path: Path) -> None:
    experiment, progress = run(tmp_path / "run", "herding+feat", feat={"etf": {"growth": growth}})
    for task, tables in enumerate(progress.tables):
        trained = load_trained(tmp_path / "run", task)
        np.testing.assert_array_equal(confusion(trained, experiment, "none"), tables.plain)


def test_a_calibrated_method_can_also_predict_as_before_calibration(tmp_path: Path) -> None:
    experiment, progress = run(tmp_path / "run", "herding+feat+calibrate", scenario={"budget": 60})
    trained = load_trained(tmp_path / "run")
    assert list(trained.corrections) == ["none", "own", "calibrate", "egc"]
    before = progress.tables[-1].variants["before calibration"]
    np.testing.assert_array_equal(confusion(trained, experiment, "egc"), before)
    np.testing.assert_array_equal(confusion(trained, experiment, "calibrate"), progress.tables[-1].corrected)


@pytest.mark.parametrize("logits", ["raw", "cosine"])
def test_corrected_logits_have_the_units_of_the_classifier(logits: str, tmp_path: Path) -> None:
    """In the first task EGC has nothing to correct, so its logits are those of the classifier itself."""
    run(tmp_path / "run", "herding+feat", feat={"logits": logits, "logit_scale": 5.0})
    first, last = load_trained(tmp_path / "run", 0), load_trained(tmp_path / "run")
    images = DATA.test_images
    torch.testing.assert_close(first.predict(images, "egc").logits, first.predict(images, "none").logits)
    plain, corrected = last.predict(images, "none").logits, last.predict(images, "egc").logits
    assert not torch.allclose(plain, corrected)
    old = slice(0, last.seen.num_old)
    assert torch.equal(plain[:, old].argmax(1), corrected[:, old].argmax(1))


def test_probabilities_sum_to_one_and_batches_do_not_matter(tmp_path: Path) -> None:
    run(tmp_path / "run", "herding+feat", keep=False)
    trained = load_trained(tmp_path / "run")
    whole, pieces = trained.predict(DATA.test_images), trained.predict(DATA.test_images, batch=7)
    torch.testing.assert_close(whole.logits, pieces.logits)
    torch.testing.assert_close(whole.probabilities.sum(dim=1), torch.ones(len(DATA.test_images)))
    nothing = trained.predict(DATA.test_images[:0])
    assert nothing.logits.shape == (0, 6)
    assert nothing.labels.shape == (0,)


def test_without_keep_models_only_the_last_task_can_be_had(tmp_path: Path) -> None:
    run(tmp_path / "run", "replay", keep=False)
    assert not (tmp_path / "run" / "models").exists()
    assert load_trained(tmp_path / "run", 2).seen.task == 2
    with pytest.raises(CheckpointError, match=r"model of task 2 was not kept.*run\.keep_models"):
        load_trained(tmp_path / "run", 1)


def test_loading_changes_nothing_and_a_kept_model_needs_no_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(folder, "herding+feat")
    newest = max((folder / "checkpoint").glob("0*"))
    content = bytearray((newest / "server.safetensors").read_bytes())
    content[-1] ^= 1  # a number changed: the checkpoint before it is taken, which is that of the last round
    (newest / "server.safetensors").write_bytes(content)
    files = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    assert not load_trained(folder).finished
    assert files == {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    shutil.rmtree(folder / "checkpoint")
    assert load_trained(folder).seen.task == 2


def test_a_stopped_run_gives_its_last_checkpoint_and_keeps_all_models_after_resume(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(event: dict[str, object]) -> None:
        if (event["event"], event.get("task"), event.get("round")) == ("round", 2, 2):
            raise Stop

    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run(straight, "herding+feat")
    table = toy_table(method="herding+feat", run={"keep_models": True})
    experiment = Experiment(make_config(table), DATA)
    with pytest.raises(Stop):
        experiment.run(RunFolder.create(stopped, experiment.config, {}), Progress(), (stop,))
    half = load_trained(stopped)
    assert (half.finished, half.seen.task) == (False, 1)

    again = Experiment(make_config(table), DATA)
    loaded = RunFolder(stopped).checkpoints.load()
    assert loaded is not None
    again.engine.restore(loaded[1])
    again.run(RunFolder(stopped), loaded[0], ())
    for task in range(3):
        assert model_path(straight, task).read_bytes() == model_path(stopped, task).read_bytes()
    assert resume(stopped)["method"] == "herding+feat"


@pytest.mark.parametrize(
    ("images", "came"),
    [
        (np.zeros((2, 8, 8, 3), np.uint8), "[2, 8, 8, 3]"),
        (np.zeros((2, 8, 8, 1), np.float32), "float32"),
        (np.zeros((8, 8, 1), np.uint8), "[8, 8, 1]"),
        (np.array([None, None]), "object [2]"),
    ],
)
def test_other_images_and_corrections_are_refused(images: np.ndarray, came: str, tmp_path: Path) -> None:
    run(tmp_path / "run", "replay", keep=False)
    trained = load_trained(tmp_path / "run")
    with pytest.raises(FedfeatError) as caught:
        trained.predict(images)
    assert came in str(caught.value)
    with pytest.raises(ConfigError, match=r"'replay' has no 'egc'"):
        trained.predict(DATA.test_images, "egc")


@pytest.mark.filterwarnings("error")
def test_arrays_may_lie_in_memory_as_they_like(tmp_path: Path) -> None:
    run(tmp_path / "run", "replay", keep=False)
    trained = load_trained(tmp_path / "run")
    fixed = DATA.test_images.copy()
    fixed.flags.writeable = False
    wanted = trained.predict(torch.tensor(DATA.test_images)).logits
    assert torch.equal(trained.predict(fixed).logits, wanted)
    assert torch.equal(trained.predict(fixed[:, ::-1, :][:, ::-1, :]).logits, wanted)
    mirrored = torch.tensor(DATA.test_images).flip(2)
    assert torch.equal(trained.predict(DATA.test_images[:, :, ::-1]).logits, trained.predict(mirrored).logits)


def test_what_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run folder"):
        load_trained(tmp_path)
    folder = tmp_path / "run"
    experiment, _ = run(folder, "replay")
    model_path(folder, 0).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"task-01\.safetensors: not a whole model file"):
        load_trained(folder, 0)
    empty = tmp_path / "empty"
    RunFolder.create(empty, experiment.config, {})
    with pytest.raises(CheckpointError, match="holds no model yet"):
        load_trained(empty)


def test_a_damaged_checkpoint_is_not_called_a_model_to_come(tmp_path: Path) -> None:
    run(tmp_path / "run", "replay", keep=False)
    for path in (tmp_path / "run").rglob("server.safetensors"):
        path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="every checkpoint is damaged; restore"):
        load_trained(tmp_path / "run")


def test_a_checkpoint_without_a_card_says_so(tmp_path: Path) -> None:
    run(tmp_path / "run", "replay", keep=False)
    from fedfeat.core.files import json_digest

    for path in (tmp_path / "run" / "checkpoint").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        del manifest["model"], manifest["checksum"]
        path.write_text(json.dumps({**manifest, "checksum": json_digest(manifest)}))
    with pytest.raises(CheckpointError, match="does not say what the model expects"):
        load_trained(tmp_path / "run")
