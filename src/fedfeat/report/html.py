"""Small pieces of HTML; every text that goes in is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def text(value: object) -> str:
    """Return any value as harmless text."""
    return escape(str(value), quote=True)


def paragraph(value: object) -> str:
    """Return a paragraph of plain text."""
    return f"<p>{text(value)}</p>"


def section(anchor: str, title: str, *content: str) -> str:
    """Return a section with a heading; an empty content leaves it out."""
    body = "\n".join(part for part in content if part)
    return (
        f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{text(title)}</h2>\n{body}\n</section>'
        if body
        else ""
    )


def table(
    caption: str,
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    strong: int | None = None,
    words: bool = False,
) -> str:
    """Return a table whose first column heads its rows; ``strong`` is a row to stress, ``words`` go left."""
    head = "".join(f'<th scope="col">{text(h)}</th>' for h in header)
    lines = []
    for number, row in enumerate(rows):
        cells = f'<th scope="row">{text(row[0])}</th>' + "".join(f"<td>{text(c)}</td>" for c in row[1:])
        lines.append(f'<tr class="best">{cells}</tr>' if number == strong else f"<tr>{cells}</tr>")
    kind, body = ' class="words"' if words else "", "\n".join(lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table{kind}><caption>{text(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def figure(svg: str, description: str, caption: str) -> str:
    """Return an inline drawing with a description for those who do not see it."""
    labelled = svg.replace("<svg", f'<svg role="img" aria-label="{text(description)}"', 1)
    words = text(caption)
    return (
        f'<figure><div class="scroll" tabindex="0" role="region" aria-label="{words}">{labelled}</div>'
        f"<figcaption>{words}</figcaption></figure>"
    )


def details(summary: str, content: str) -> str:
    """Return a part that opens on demand."""
    return f"<details><summary>{text(summary)}</summary>\n{content}\n</details>" if content else ""


def bullets(items: Iterable[object]) -> str:
    """Return a list of plain texts."""
    lines = "\n".join(f"<li>{text(item)}</li>" for item in items)
    return f"<ul>\n{lines}\n</ul>" if lines else ""


def document(title: str, style: str, body: str) -> str:
    """Return a whole page that loads nothing: the policy forbids what the page does not need anyway."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<title>{text(title)}</title>
<style>
{style}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
