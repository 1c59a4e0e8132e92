"""``fedfeat predict`` and ``fedfeat export`` as a user meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from fedfeat.cli import app, main, predict
from fedfeat.config.config import make_config
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.trained import load_trained
from toy import toy_dataset, toy_table

Image = pytest.importorskip("PIL.Image")
DATA = toy_dataset()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and three pictures of the test set as files."""
    root = tmp_path_factory.mktemp("predict")
    table = toy_table(method="herding+feat", scenario={"tasks": 3, "budget": 60}, run={"keep_models": True})
    experiment = Experiment(make_config(table), DATA)
    experiment.run(RunFolder.create(root / "run", experiment.config, {}), Progress(), ())
    (root / "pictures").mkdir()
    for number in (0, 25, 59):
        Image.fromarray(DATA.test_images[number][..., 0]).save(root / "pictures" / f"{number:02d}.png")
    return root


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("correction", ["none", "egc"])
def test_json_holds_what_the_model_predicts(correction: str, place: Path) -> None:
    result = invoke("predict", place / "run", place / "pictures", "--json", "--top", 2, "--correction", correction)
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    model = load_trained(place / "run")
    ours = model.predict(DATA.test_images[[0, 25, 59]], correction)
    assert said["classes"] == list(model.class_names)
    assert (said["task"], said["task_finished"], said["correction"]) == (3, True, correction)
    for row, probabilities, label in zip(said["images"], ours.probabilities, ours.labels, strict=True):
        best = probabilities.topk(2)
        assert row["class"] == model.class_names[label]
        assert [t["class"] for t in row["top"]] == [model.class_names[c] for c in best.indices]
        np.testing.assert_allclose([t["probability"] for t in row["top"]], best.values.numpy(), rtol=1e-6)


def test_the_own_correction_is_the_default_and_named(place: Path) -> None:
    said = json.loads(invoke("predict", place / "run", place / "pictures", "--json").output)
    named = json.loads(invoke("predict", place / "run", place / "pictures", "--json", "--correction", "egc").output)
    assert said == named


def test_the_model_of_an_earlier_task_knows_fewer_classes(place: Path) -> None:
    said = json.loads(invoke("predict", place / "run", place / "pictures", "--json", "--task", 1, "--top", 9).output)
    assert said["task"] == 1
    assert {len(row["top"]) for row in said["images"]} == {2}


def test_the_table_names_files_and_classes(place: Path) -> None:
    result = invoke("predict", place / "run", place / "pictures" / "00.png", "--top", 1)
    assert "herding+feat trained on npz, after task 3: 6 classes, correction egc; images become 8x8, grey" in " ".join(
        result.output.split()
    )
    assert "square-" in result.output


@pytest.mark.parametrize("width", [40, 80, 300])
def test_no_terminal_is_too_narrow_for_a_whole_path(width: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict.console, "width", width)
    picture = place / "pictures" / "00.png"
    result = invoke("predict", place / "run", picture, "--top", 1)
    lines = result.output.partition("image ")[2].splitlines()[1:]
    assert str(picture) in "".join(line.split(" ")[0] for line in lines)
    assert "…" not in result.output


def test_a_bad_picture_is_named_and_the_others_go_on(place: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_text("nothing")
    result = invoke("predict", place / "run", tmp_path, place / "pictures", tmp_path / "gone.png", "--json")
    assert result.exit_code == 1
    rows = json.loads(result.output)["images"]
    assert ["error" in row for row in rows] == [True, False, False, False, True]
    table = invoke("predict", place / "run", tmp_path, place / "pictures")
    assert table.exit_code == 1
    assert "bad.png: this is not an image" in table.output
    assert "square-" in table.output
    only_bad = invoke("predict", place / "run", tmp_path / "bad.png")
    assert only_bad.exit_code == 1
    assert "not an image" in only_bad.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["predict", "{run}", "{empty}"], "no image was found"),
        (["predict", "{run}", "{pictures}", "--correction", "ecg"], "did you mean 'egc'?"),
        (["predict", "{run}", "{pictures}", "--task", "7"], "model of task 7 was not kept"),
        (["predict", "{empty}", "{pictures}"], "not a run folder"),
        (["export", "{empty}", "--out", "{empty}/m.onnx"], "not a run folder"),
        (["export", "{run}", "--out", "{run}/config.toml/m.onnx", "--format", "torchscript"], "cannot be written"),
        (["export", "{run}", "--out", "{empty}", "--format", "torchscript"], "expected a file to write, got a folder"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str],
    words: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = {"run": place / "run", "pictures": place / "pictures", "empty": tmp_path}
    monkeypatch.setattr(sys, "argv", ["fedfeat", *(a.format(**paths) for a in arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr().err
    assert stop.value.code == 2, said
    assert words in said
    assert len(said.strip().splitlines()) == 1


def test_export_says_what_it_wrote(place: Path, tmp_path: Path) -> None:
    result = invoke("export", place / "run", "--format", "torchscript", "--out", tmp_path / "model.pt", "--task", 2)
    assert result.exit_code == 0, result.output
    for words in ("torchscript, correction egc", "uint8 [N, 8, 8, 1]", "float32 [N, 4]", "largest difference"):
        assert words in result.output
    assert (tmp_path / "model.pt").is_file()
