"""``--only``: a comma-separated choice of data sets, skews, numbers of clients and methods."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedfeat.core.errors import FedfeatError, nearest
from fedfeat.methods import parts_of
from fedfeat_reproduction.published import BASELINES, Entry


def choose(entries: Sequence[Entry], only: str) -> list[Entry]:
    """Return the entries that fit: words of one kind are alternatives, different kinds must all fit.

    ``cifar10-5,beta0.5,k5,fedcbdr+feat`` is one number of the main table; ``cifar10,fedcbdr,refed`` are many.
    """
    words = [word.strip() for word in only.split(",") if word.strip()]
    wanted: dict[str, set[str]] = {}
    for word in words:
        kind, value = _kind(word, entries)
        wanted.setdefault(kind, set()).add(value)
    return [e for e in entries if all(values & set(_words(e)[kind]) for kind, values in wanted.items())]


def _words(entry: Entry) -> dict[str, tuple[str, ...]]:
    cell = entry.cell
    return {
        "data": (cell.data, cell.split, cell.name, cell.name.rsplit("-", 1)[0]),
        "beta": (f"beta{cell.beta:g}",),
        "clients": (f"k{cell.clients}",),
        "method": (entry.method, entry.label.lower(), *_aliases(entry)),
    }


def _aliases(entry: Entry) -> list[str]:
    """Return the main table's name of a method, which other tables do not always use."""
    return [label.lower() for label, method in BASELINES.items() if method == entry.method]


def _kind(word: str, entries: Sequence[Entry]) -> tuple[str, str]:
    text = word.lower()
    beta = re.fullmatch(r"beta(\d+\.?\d*|\.\d+)", text)
    if beta:
        text = f"beta{float(beta[1]):g}"
    for entry in entries:
        for kind, values in _words(entry).items():
            if text in values:
                return kind, text
    known = {value for entry in entries for values in _words(entry).values() for value in values}
    raise FedfeatError(f"--only {word!r}: nothing in this table is called so; {nearest(text, known)}")


def also_methods(entries: Sequence[Entry], also: str) -> list[Entry]:
    """Return entries without a published value: further methods of ours in the same cells."""
    methods = list(dict.fromkeys(name.strip() for name in also.split(",") if name.strip()))
    for method in methods:
        parts_of(method)  # an unknown name is answered with the nearest one
    there = {(e.cell, e.method) for e in entries}
    cells = dict.fromkeys((e.cell, e.task, e.measure) for e in entries)
    return [
        Entry(method, method, cell, None, task, measure)
        for cell, task, measure in cells
        for method in methods
        if (cell, method) not in there
    ]
