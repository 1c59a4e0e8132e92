"""The predictions of one model side by side: without correction, with EGC, calibrated; one switch chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedfeat.federation.metrics import Matrix, backward_transfer, forgetting
from fedfeat.report.records import Confusion, HeadTail
from fedfeat.report.run import Run

NONE, EGC, OWN = "none", "egc", "own"
BEFORE_CALIBRATION = "before calibration"  # the variant that calibrate has evaluated: EGC as published
OWN_LABELS = {"calibrate": "calibrated", "egc": "EGC", "feat": "EGC", "ncm": "class means", "clip2fl": "re-trained"}
ANY_LABEL = "method's own"


@dataclass(frozen=True)
class Prediction:
    """What one way to predict reached after each finished task, and its last confusion table."""

    accuracies: Sequence[float]
    matrix: Matrix
    head_tail: Sequence[HeadTail]
    per_class: Sequence[Sequence[float]]
    confusion: Confusion

    def measures(self) -> dict[str, float]:
        """Return the summary of a finished run."""
        return {
            "final_accuracy": self.accuracies[-1],
            "average_incremental_accuracy": fmean(self.accuracies),
            "forgetting": forgetting(self.matrix),
            "backward_transfer": backward_transfer(self.matrix),
        }


def predictions(run: Run) -> dict[str, Prediction]:
    """Return every prediction a run has: always ``none``; ``own`` and ``egc`` where they differ from it."""
    found = {NONE: _main(run, corrected=False)}
    if run.has_correction:
        found[OWN] = _main(run, corrected=True)
    before = _variant(run, BEFORE_CALIBRATION)
    if before is not None:
        found.setdefault(OWN, _main(run, corrected=True))
        found[EGC] = before
    return found


def choices(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return the positions of the switch, weakest correction first; one position means there is nothing to switch."""
    kinds = {kind for run in runs for kind in predictions(run)}
    labels = {own_label(run) for run in runs if OWN in predictions(run)}
    if EGC in kinds:
        own = OWN_LABELS["calibrate"]
    else:
        own = labels.pop() if len(labels) == 1 else ANY_LABEL
    names = {NONE: "none", EGC: "EGC", OWN: own}
    return [{"key": key, "label": label} for key, label in names.items() if key in kinds]


def own_label(run: Run) -> str:
    """Return the name of the method's own prediction."""
    parts = run.method.split("+")
    return next((label for part, label in OWN_LABELS.items() if part in parts), ANY_LABEL)


def _main(run: Run, *, corrected: bool) -> Prediction:
    result = run.result
    confusion: Confusion = []
    if result is not None:
        confusion = result.confusion if corrected else result.confusion_uncorrected
    return Prediction(
        run.accuracies(corrected),
        run.matrix(corrected),
        [t.head_tail if corrected else t.head_tail_uncorrected for t in run.tasks],
        [t.per_class if corrected else t.per_class_uncorrected for t in run.tasks],
        confusion,
    )


def _variant(run: Run, name: str) -> Prediction | None:
    tasks = [t.variants[name] for t in run.tasks if name in t.variants]
    result = run.result
    if result is not None and name in result.accuracy_matrix_of_variants:
        accuracies, matrix = result.accuracy_of_variants.get(name, []), result.accuracy_matrix_of_variants[name]
    else:
        accuracies, matrix = [t.accuracy for t in tasks], [t.per_task for t in tasks]
    if not accuracies or len(accuracies) != len(run.accuracies()):
        return None
    confusion = result.confusion_of_variants.get(name, []) if result else []
    return Prediction(accuracies, matrix, [t.head_tail for t in tasks], [t.per_class for t in tasks], confusion)
