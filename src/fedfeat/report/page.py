"""One HTML file that needs nothing else: data, style, script and the chart library are all inside it."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

from fedfeat.core.errors import FedfeatError, MissingExtra, required
from fedfeat.core.files import write_atomically
from fedfeat.report.group_data import Data
from fedfeat.report.page_data import page_data
from fedfeat.report.run import Run

ASSETS = Path(__file__).with_name("assets")
SCRIPTS = (  # in the order in which they rest on each other; together they are one script
    "dom.js",
    "unpack.js",
    "theme.js",
    "state.js",
    "copying.js",
    "tables.js",
    "traces.js",
    "figures.js",
    "rounds.js",
    "sweep.js",
    "learning.js",
    "forgetting.js",
    "clients.js",
    "scenario.js",
    "correction.js",
    "cost.js",
    "answers.js",
    "setting.js",
    "toolbar.js",
    "main.js",
    "live.js",
)
STYLES = ("colours.css", "page.css", "parts.css", "tables.css", "media.css")


class Packed(NamedTuple):
    """Compressed text that can stand in a page as it is, the size of the text in bytes, and its digest as a script."""

    text: str = ""
    size: int = 0
    digest: str = ""


def packed(text: str) -> Packed:
    """Return text that ``unpack.js`` unpacks: raw deflate in base 85, whose digit ``<`` would begin a tag."""
    content = text.encode("utf-8", errors="replace")
    compressor = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    small = compressor.compress(content) + compressor.flush()
    return Packed(base64.b85encode(small, pad=True).decode().replace("<", ","), len(content), digest(content))


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write the report of some runs as one HTML file."""
    write_atomically(path, report_html(runs).encode("utf-8", errors="replace"))


def report_html(runs: Sequence[Run]) -> str:
    """Return the report of some runs as the text of an HTML page."""
    if not runs:
        raise FedfeatError("a report needs at least one run")
    return document(page_data(runs))


def document(data: Data, *, live: bool = False) -> str:
    """Return the page around some data; a live page may ask its own server for newer data, and nobody else."""
    try:
        library = _chart_library()
    except MissingExtra as error:
        library = Packed()
        data = {**data, "missing": [f"Charts: {error}.", *data["missing"]]}
    script, content = _own_script(), packed(data_text(data))
    values = {
        "policy": policy([digest(script.encode()), library.digest], live=live),
        "title": escape(data["title"]),
        "headline": escape(" ".join(data["headline"])),
        "style": _joined(STYLES),
        "live": "true" if live else "false",
        "data": content.text,
        "data_size": str(content.size),
        "library": library.text,
        "library_size": str(library.size),
        "script": script,
    }
    page = (ASSETS / "page.html").read_text(encoding="utf-8")
    # Split once, so that nothing inside a value is taken for a place of the template.
    parts = page.split("{{")
    filled = (values[name] + rest for name, _, rest in (part.partition("}}") for part in parts[1:]))
    return parts[0] + "".join(filled)


def data_text(data: Data) -> str:
    """Return data as JSON that can stand inside a script element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def digest(script: bytes) -> str:
    """Return what a content security policy knows a script by."""
    return base64.b64encode(hashlib.sha256(script).digest()).decode()


def policy(digests: Sequence[str], *, live: bool) -> str:
    """Return a content security policy: these scripts, inline style, embedded pictures, and nothing else."""
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests if digest)
    connect = " connect-src 'self';" if live else ""
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:;"
        f"{connect} base-uri 'none'; form-action 'none'"
    )


def _joined(names: Sequence[str]) -> str:
    return "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in names)


@cache
def _own_script() -> str:
    return _embeddable('(() => {\n"use strict";\n' + _joined(SCRIPTS) + "})();\n")


@cache
def _chart_library() -> Packed:
    return packed(required("plotly.offline", "plots", "drawing charts").get_plotlyjs())


def _embeddable(script: str) -> str:
    """Return a script that no parser of HTML would change or end early, so that its digest holds."""
    lines = script.replace("\r\n", "\n").replace("\r", "\n")
    return lines.replace("</script", r"<\/script").replace("<!--", r"\x3C!--")
