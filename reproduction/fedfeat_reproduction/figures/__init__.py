"""The figures of the paper, each from its experiments to its drawing: ``FIGURES`` by name, made by ``make_figure``."""

from __future__ import annotations

from collections.abc import Mapping

from fedfeat_reproduction.figures import (
    attention_maps,
    corrected_logits,
    curves,
    feature_alignment,
    sensitivity,
    tail_drift,
)
from fedfeat_reproduction.figures.experiments import experiments_of
from fedfeat_reproduction.figures.figure import (
    DrawnFigure,
    FigureOptions,
    Finding,
    Numbers,
    PaperFigure,
    draw_again,
    make_figure,
    read_figure,
    write_numbers,
)

FIGURES: Mapping[str, PaperFigure] = {
    figure.name: figure
    for figure in (
        feature_alignment.FIGURE,
        tail_drift.FIGURE,
        curves.FORGETTING,
        curves.REPLAY_BUDGET,
        curves.REPLAY_BUDGET_TEXT,
        sensitivity.FIGURE,
        sensitivity.TEXT_FIGURE,
        curves.LOCAL_EPOCHS,
        attention_maps.FIGURE,
        corrected_logits.FIGURE,
    )
}

__all__ = [
    "FIGURES",
    "DrawnFigure",
    "FigureOptions",
    "Finding",
    "Numbers",
    "PaperFigure",
    "draw_again",
    "experiments_of",
    "make_figure",
    "read_figure",
    "write_numbers",
]
