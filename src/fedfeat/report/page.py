"""One HTML file that needs nothing else: tables, drawings and style are all inside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedfeat import __version__
from fedfeat.errors import FedfeatError, MissingExtra
from fedfeat.files import write_atomically
from fedfeat.report import html, sections
from fedfeat.report.collect import SummaryRow, problems, summary_rows
from fedfeat.report.figures import drawable
from fedfeat.report.run import Run
from fedfeat.report.style import drawing
from fedfeat.report.words import count, headline, named

STYLE = Path(__file__).with_name("style.css")


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write the report of some runs as one HTML file."""
    write_atomically(path, report_html(runs).encode("utf-8", errors="replace"))


def report_html(runs: Sequence[Run]) -> str:
    """Return the report of some runs as the text of an HTML page."""
    if not runs:
        raise FedfeatError("a report needs at least one run")
    rows = summary_rows(runs)
    groups = [row.group for row in rows]
    drawn, notes = drawable(groups), _without_matplotlib()
    parts = [
        sections.comparison(rows),
        sections.curves(drawn) if drawn else "",
        sections.matrices(drawn) if drawn else "",
        sections.head_tail(drawn),
        sections.rounds(drawn),
        sections.communication(rows),
        sections.scenario(runs),
        sections.settings(groups),
        sections.missing(runs, notes),
    ]
    title = f"{', '.join(sorted({row.dataset for row in rows}))}: {named(rows, ', '.join)}"
    header = _header(title, rows, len(problems(runs)) + len(notes))
    body = "\n".join([header, *filter(None, parts), _footer(runs)])
    return html.document(f"{title} | fedfeat report", STYLE.read_text(encoding="utf-8"), body)


def _header(title: str, rows: Sequence[SummaryRow], missing: int) -> str:
    lead = "".join(f'<p class="lead">{html.text(sentence)}</p>\n' for sentence in headline(rows))
    if missing:
        words = "1 thing is missing" if missing == 1 else f"{missing} things are missing"
        lead += f'<p class="warning"><a href="#missing">{words}</a> from what follows.</p>\n'
    return f"<header>\n<h1>{html.text(title)}</h1>\n{lead}</header>"


def _footer(runs: Sequence[Run]) -> str:
    made = f"Made by fedfeat {__version__} from {count(len(runs), 'run folder')}."
    return f"<footer>{html.paragraph(made)}</footer>"


def _without_matplotlib() -> list[str]:
    try:
        with drawing():
            return []
    except MissingExtra as error:
        return [str(error)]
