"""Events as flat numbers, the form that every tracker takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Scalars = dict[str, float]
POSITION = ("event", "task", "round")  # these say where an event belongs
LEFT_OUT = ("client_losses", "traffic", "config")  # a curve per client or message would bury the others


def step_of(event: Mapping[str, Any], rounds: int) -> int:
    """Return the number of rounds that a run has behind it at an event, over all tasks."""
    return (int(event["task"]) - 1) * rounds + int(event.get("round", rounds))


def scalars(event: Mapping[str, Any]) -> Scalars:
    """Return every number of a round's or task's event, under names such as ``round/losses/ce``."""
    rest = {key: value for key, value in event.items() if key not in (*POSITION, *LEFT_OUT)}
    return dict(_flat(rest, f"{event['event']}/"))


def result_scalars(result: Mapping[str, Any]) -> Scalars:
    """Return the single numbers of a result, such as ``result/final_accuracy``."""
    return {f"result/{key}": float(value) for key, value in result.items() if _is_number(value) and key != "seed"}


def flat_settings(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in table.items():
        if _is_number(value):
            yield prefix + key, float(value)
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        elif key.startswith("per_task") and isinstance(value, list):
            # Other lists are histograms, which belong to the report.
            yield from _flat({str(number): entry for number, entry in enumerate(value, 1)}, f"{prefix}{key}/")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
