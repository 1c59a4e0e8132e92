"""The figures of the paper, each from its experiments to its drawing: ``FIGURES`` by name, made by ``make_figure``."""

from __future__ import annotations

from collections.abc import Mapping

from fedfeat_reproduction.figures import (
    attention_maps,
    corrected_logits,
    feature_alignment,
    forgetting_curves,
    local_epochs,
    replay_budget,
    sensitivity,
    tail_drift,
)
from fedfeat_reproduction.figures.asked import Asked, experiments_of
from fedfeat_reproduction.figures.experiments import narrowed
from fedfeat_reproduction.figures.figure import Finding, Numbers, PaperFigure
from fedfeat_reproduction.figures.make import Made, draw_again, make_figure, read_figure, write_numbers

FIGURES: Mapping[str, PaperFigure] = {
    module.FIGURE.name: module.FIGURE
    for module in (
        feature_alignment,
        tail_drift,
        forgetting_curves,
        replay_budget,
        sensitivity,
        local_epochs,
        attention_maps,
        corrected_logits,
    )
}

__all__ = [
    "FIGURES",
    "Asked",
    "Finding",
    "Made",
    "Numbers",
    "PaperFigure",
    "draw_again",
    "experiments_of",
    "make_figure",
    "narrowed",
    "read_figure",
    "write_numbers",
]
