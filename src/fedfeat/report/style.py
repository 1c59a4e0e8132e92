"""The look of every figure: one palette that colour-blind eyes and printers keep apart, one way to save."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedfeat.core.errors import MissingExtra
from fedfeat.core.files import write_atomically

INK, MUTED, GRID, PAGE = "#1b1f24", "#5b636e", "#d9dde2", "#fefefe"
SERIES = ("#0072b2", "#d55e00", "#00875f", "#a8327e", "#8a6a00", "#3a9bd9", "#5a4fcf", "#707070")
MARKERS = "osD^vPX*"
_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


@contextmanager
def drawing(settings: Any = _SETTINGS) -> Iterator[Any]:
    """Lend ``matplotlib.figure.Figure`` under a style, a report's unless told; the caller's own settings come back."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots", "drawing figures") from error
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure


def look(index: int) -> dict[str, Any]:
    """Return colour and marker of the n-th method, the same in every figure of a report."""
    lap, colour = divmod(index, len(SERIES))
    return {"color": SERIES[colour], "marker": MARKERS[(index + 3 * lap) % len(MARKERS)]}


def short(text: str, length: int = 34) -> str:
    """Return a name for a figure: cut when long, and never read as a formula."""
    clean = " ".join(text.split()).lstrip("_") or "?"
    return (clean if len(clean) <= length else clean[: length - 1] + "…").replace("$", r"\$")


def save_png(figure: Any, path: Path) -> None:
    """Write a figure as PNG on white, whole or not at all."""
    buffer = io.BytesIO()
    with drawing():
        figure.savefig(buffer, format="png", dpi=200, facecolor="white")
    write_atomically(path, buffer.getvalue())
