"""Which runs tell a method's figure: its own, and runs whose training is the same and whose prediction differs.

EGC and calibration act at prediction. So a run of FEAT also gives the figure of ETF and GSA alone, and a calibrated
run the figures before calibration. The latter trained without the samples that it held out, and chose its exemplars
with a model that had not seen them; that is said where such figures are shown.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from fedfeat.core.errors import FedfeatError
from fedfeat.methods import compose
from fedfeat_reproduction.records import Matrix, Record

PredictionName = Literal["corrected", "plain", "before calibration"]
CALIBRATE = "+calibrate"


class FigureSource(NamedTuple):
    """A method that was trained, which of its predictions to read, and whether it held samples out."""

    method: str
    prediction: PredictionName
    held_out: bool = False


def sources(method: str) -> list[FigureSource]:
    """Return where the figure of a method may be read, the method's own runs first."""
    found = [FigureSource(method, "corrected")]
    richer = _with_correction(method)
    if richer is not None:
        found.append(FigureSource(richer, "plain"))
    if can_calibrate(method):
        found.append(FigureSource(method + CALIBRATE, "before calibration", held_out=True))
    if richer is not None and can_calibrate(richer):
        found.append(FigureSource(richer + CALIBRATE, "plain", held_out=True))
    return found


def trained_as(method: str) -> str:
    """Return the method to train for a figure: the one that gives more figures, where the training is the same."""
    return _with_correction(method) or method


def can_calibrate(method: str) -> bool:
    """Whether the add-on ``calibrate`` goes on top of a method: it needs exemplars, and is not there yet."""
    return _composes(method + CALIBRATE)


def _composes(method: str) -> bool:
    try:
        compose(method, {})
    except FedfeatError:
        return False
    return True


def is_calibrated(method: str) -> bool:
    """Whether calibration is one of a method's parts."""
    return CALIBRATE.lstrip("+") in method.split("+")


def after_tasks(record: Record, prediction: PredictionName) -> list[float]:
    """Return the accuracy after each task under a prediction."""
    if prediction == "corrected":
        return record.accuracy_after_task
    uncorrected = record.accuracy_after_task_uncorrected
    # A method without a correction has no prediction of that name: its plain one it is.
    return uncorrected if prediction == "plain" else record.accuracy_of_variants.get(prediction, uncorrected)


def matrix(record: Record, prediction: PredictionName) -> Matrix | None:
    """Return the accuracies on each task's classes; None where a record does not have them."""
    if prediction == "corrected":
        return record.accuracy_matrix
    if prediction == "plain" or prediction not in record.accuracy_of_variants:
        return record.accuracy_matrix_uncorrected
    return record.accuracy_matrix_of_variants.get(prediction)


def numbers_sent(record: Record) -> float | None:
    """Return how many numbers a client sent per round of the later tasks, without weights, losses and image count."""
    if not record.traffic:
        return None
    sent = sum(
        size
        for key, size in record.traffic.items()
        if key.startswith("up/train/")
        and (name := key.split("/")[-1]) not in ("weights", "samples")
        and not name.startswith("loss.")
    )
    scenario = record.config["scenario"]
    rounds: int = record.config["train"]["rounds"] * max(scenario["tasks"] - 1, 1)
    clients: int = scenario["clients"]
    return sent / 4 / rounds / clients


def _with_correction(method: str) -> str | None:
    """Return the method that trains the same and corrects at prediction."""
    names = method.split("+")
    if "etf" not in names or "egc" in names or is_calibrated(method):
        return None
    if "gsa" in names:
        corrected = "+".join("feat" if n == "etf" else n for n in names if n != "gsa")
    else:
        corrected = "+".join(p for n in names for p in ((n, "egc") if n == "etf" else (n,)))
    return corrected if _composes(corrected) else None
