"""The predictions of one model side by side: without correction, a variant, the method's own; one switch chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedfeat.algorithm.tables import OWN, OWN_LABEL
from fedfeat.federation.metrics import Matrix, backward_transfer, forgetting
from fedfeat.report.records import Confusion, HeadTail
from fedfeat.report.run import Run

NONE, VARIANT = "none", "variant"  # with OWN the positions of the switch


@dataclass(frozen=True)
class PredictionRecord:
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


def predictions(run: Run) -> dict[str, PredictionRecord]:
    """Return every prediction a run has: always ``none``; ``own`` and ``variant`` where they differ from it."""
    found = {NONE: _main(run, corrected=False)}
    if run.has_correction:
        found[OWN] = _main(run, corrected=True)
    name = next(iter(run.variants), None)
    variant = _variant(run, name) if name is not None else None
    if variant is not None:
        found.setdefault(OWN, _main(run, corrected=True))
        found[VARIANT] = variant
    return found


def choices(runs: Sequence[Run]) -> list[dict[str, str]]:
    """Return the positions of the switch, weakest correction first; one position means there is nothing to switch."""
    found = [(labels(run), predictions(run)) for run in runs]
    several = any(VARIANT in kinds for _, kinds in found)
    owners = [said for said, kinds in found if (VARIANT if several else OWN) in kinds]
    names = {NONE: NONE, **{key: _common({said[key] for said in owners}) for key in (VARIANT, OWN)}}
    return [{"key": key, "label": name} for key, name in names.items() if any(key in kinds for _, kinds in found)]


def labels(run: Run) -> dict[str, str]:
    """Return what a run's own prediction and its variant are called; old runs know only their method's name."""
    said = run.labels
    if OWN in said:
        return {OWN: said[OWN], VARIANT: next((said[v] for v in run.variants if v in said), OWN_LABEL)}
    if not (run.has_correction or run.variants):  # nothing is shown under these names
        return {OWN: OWN_LABEL, VARIANT: OWN_LABEL}
    from fedfeat.methods import declared_labels  # needs PyTorch

    *earlier, own = declared_labels(run.method) or [OWN_LABEL]
    return {OWN: own, VARIANT: earlier[-1] if earlier else OWN_LABEL}


def _common(labels: set[str]) -> str:
    return labels.pop() if len(labels) == 1 else OWN_LABEL


def _main(run: Run, *, corrected: bool) -> PredictionRecord:
    result = run.result
    confusion: Confusion = []
    if result is not None:
        confusion = result.confusion if corrected else result.confusion_uncorrected
    return PredictionRecord(
        run.accuracies(corrected),
        run.matrix(corrected),
        [t.head_tail if corrected else t.head_tail_uncorrected for t in run.tasks],
        [t.per_class if corrected else t.per_class_uncorrected for t in run.tasks],
        confusion,
    )


def _variant(run: Run, name: str) -> PredictionRecord | None:
    tasks = [t.variants[name] for t in run.tasks if name in t.variants]
    result = run.result
    if result is not None and name in result.accuracy_matrix_of_variants:
        accuracies, matrix = result.accuracy_of_variants.get(name, []), result.accuracy_matrix_of_variants[name]
    else:
        accuracies, matrix = [t.accuracy for t in tasks], [t.per_task for t in tasks]
    if not accuracies or len(accuracies) != len(run.accuracies()):
        return None
    confusion = result.confusion_of_variants.get(name, []) if result else []
    return PredictionRecord(accuracies, matrix, [t.head_tail for t in tasks], [t.per_class for t in tasks], confusion)
