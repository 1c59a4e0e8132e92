"""The look of the paper's figures: two-column widths, a serif face, colours and marks that survive a printer.

A method is recognised twice: its colour and marker say which replay rule it builds on, a filled marker on a solid line
says that FEAT is on top. Old and new classes, and runs without and with GSA, have one look each in all figures.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedfeat.config.presets import DATASETS
from fedfeat.core.files import write_atomically
from fedfeat.report.figures import drawing

COLUMN, PAGE = 3.35, 6.95  # inches: one column, and both
INK, MUTED, GRID, PAPER = "#1a1a1a", "#6b6b6b", "#dcdcdc", "#ffffff"
TAIL, HEAD = "#0072b2", "#d55e00"  # classes of earlier tasks, classes of the current one
# The fixed classifier without and with GSA: open and filled marks. EGC changes no training, so tables share these runs.
GSA = ("fedcbdr+etf+egc", "fedcbdr+feat")
GSA_NAMES = {GSA[0]: "without GSA", GSA[1]: "with GSA"}
FORMATS = ("pdf", "svg", "png")
DASHES = (0, (3.2, 1.8))

_BASES = {"fedcbdr": ("#c8431a", "o", "FedCBDR", "F"), "refed": ("#0b62a4", "s", "Re-Fed+", "R")}
_DATA = {**DATASETS, "tiny-imagenet": DATASETS["tiny"], "digits": "Digits (quick run)"}


@contextmanager
def paper_style() -> Iterator[Any]:
    """Lend ``matplotlib.figure.Figure`` under the style of the paper's figures, ``paper.mplstyle``."""
    with drawing({}) as figure_class:
        import matplotlib

        with matplotlib.rc_context(fname=Path(__file__).with_name("paper.mplstyle")):
            yield figure_class


def method_name(method: str) -> str:
    """Return the paper's name of a method, such as FEAT with a subscript; other names stay as they are."""
    base, _, addons = method.partition("+")
    if base in _BASES and addons in ("", "feat"):
        _, _, name, letter = _BASES[base]
        return rf"FEAT$_{{\mathrm{{{letter}}}}}$" if addons else name
    return method


def plain_name(method: str) -> str:
    """Return the same for a terminal: FEAT_F instead of a formula."""
    return method_name(method).replace(r"$_{\mathrm{", "_").replace("}}$", "")


def method_look(method: str) -> dict[str, Any]:
    """Return colour, marker, fill and dashes of a method's line."""
    base, _, addons = method.partition("+")
    colour, marker, *_ = _BASES.get(base, (MUTED, "D"))
    filled = bool(addons)
    return {
        "color": colour,
        "marker": marker,
        "ls": "-" if filled else DASHES,
        "mfc": colour if filled else PAPER,
        "mec": colour,
        "mew": 1.0,
        "zorder": 4 if filled else 3,
    }


def gsa_look(method: str, colour: str, marker: str = "o") -> dict[str, Any]:
    """Return the mark of a value: its colour says of what, filled or open says with or without GSA."""
    return {
        "marker": marker,
        "ls": "none",
        "ms": 3.8,
        "mec": colour,
        "mfc": colour if method == GSA[1] else PAPER,
        "mew": 0.9,
    }


def gsa_legend(colours: dict[str, str], methods: list[str]) -> list[Any]:
    """Return legend entries for colours, then for open and filled marks."""
    from matplotlib.lines import Line2D

    marks = dict(zip(colours, ("o", "D"), strict=True))
    entries = [Line2D([], [], label=name, **gsa_look(GSA[1], c, marks[name])) for name, c in colours.items()]
    return entries + [Line2D([], [], label=GSA_NAMES[m], **gsa_look(m, INK)) for m in GSA if m in methods]


def shade_head(axis: Any, places: list[int]) -> None:
    """Lay a faint band behind the current classes."""
    if places:
        axis.axvspan(min(places) - 0.5, max(places) + 0.5, color=HEAD, alpha=0.07, lw=0, zorder=0)


def spaced(figure: Any, between: float = 0.05, edge: float = 0.02) -> None:
    """Leave room between panels, as a share of their width, and above and below them, in inches."""
    figure.get_layout_engine().set(wspace=between, h_pad=edge)


def data_name(data: str) -> str:
    """Return a data set's name for a title."""
    return _DATA.get(data, data.replace("$", r"\$"))


def letter(axis: Any, name: str) -> None:
    """Put a panel's letter at its upper left, outside of the axes."""
    axis.set_title(rf"$\bf{{({name})}}$", loc="left", fontsize=8)


def save_figure(figure: Any, stem: Path, kinds: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure as PDF, SVG and PNG beside each other; the same numbers give the same bytes."""
    paths = []
    for kind in kinds:
        buffer = io.BytesIO()
        stamp = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}[kind]
        with paper_style():
            figure.savefig(buffer, format=kind, dpi=300, facecolor=PAPER, metadata=stamp)
        content = _numbered(buffer.getvalue()) if kind == "svg" else buffer.getvalue()
        paths.append(stem.with_name(f"{stem.name}.{kind}"))
        write_atomically(paths[-1], content)
    return paths


def _numbered(svg: bytes) -> bytes:
    """Name the parts of an SVG in their order; matplotlib's names also depend on where objects lie in memory."""
    text = svg.decode()
    names = {name: f"p{number}" for number, name in enumerate(dict.fromkeys(re.findall(r'\bid="([^"]+)"', text)))}
    used = re.compile(r'(\bid="|href="#|url\(#)([^")]+)')
    return used.sub(lambda found: found[1] + names.get(found[2], found[2]), text).encode()
