"""A Sphinx extension: the navigation comes from conf.py, and links that leave docs/ stay inside the site.

On a code host, `../examples/my_method.py` leads to the file. A built site has no such file beside it, so each file that
a page links to becomes a page of its own, with its text in colours, and a folder becomes a list of its files.
CONTRIBUTING.md and CHANGELOG.md stand in the root of the repository and are pages here.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
FROM_ROOT = {"contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}
PAGES = {ROOT / name: f"{page}.md" for page, name in FROM_ROOT.items()} | {ROOT / "README.md": "index.md"}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")

_linked: set[Path] = set()


def address(path: Path) -> str:
    """Return where a file of the repository lies in the site, without the ending."""
    return f"source/{path.relative_to(ROOT).as_posix()}"


def stay_inside(text: str, folder: Path, docname: str) -> str:
    """Rewrite the links of a page that was written for ``folder``; files outside of docs/ are remembered."""
    here = (DOCS / docname).parent

    def rewrite(match: re.Match[str]) -> str:
        label, path, anchor = match[1], (folder / match[2]).resolve(), match[3] or ""
        path = DOCS / PAGES[path] if path in PAGES else path
        if path.is_relative_to(DOCS):
            return f"[{label}]({os.path.relpath(path, here)}{anchor})"
        if not path.exists():
            return match[0]  # the build names it
        _linked.add(path)
        return f'<a href="{os.path.relpath(DOCS / address(path), here)}.html">{label}</a>'

    return LINK.sub(rewrite, text)


def on_source_read(app: Sphinx, docname: str, content: list[str]) -> None:
    """Take pages from the root of the repository, and keep links inside."""
    if docname in FROM_ROOT:
        content[0] = stay_inside((ROOT / FROM_ROOT[docname]).read_text(), ROOT, docname)
    else:
        content[0] = stay_inside(content[0], (DOCS / docname).parent, docname)
    content[0] += contents(app.config.navigation.get(docname, {}))


def contents(groups: dict[str, list[str]]) -> str:
    """Return hidden tables of contents, one per caption; pages on a code host do without them."""
    return "".join(
        "\n\n```{toctree}\n:hidden:\n:glob:\n"
        + f":caption: {caption}\n" * bool(caption)
        + "\n".join(["", *pages, "```\n"])
        for caption, pages in groups.items()
    )


def file_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each linked file, and for each linked folder with the files in it."""
    folders = sorted(path for path in _linked if path.is_dir())
    files = {path for path in _linked if path.is_file()}
    for folder in folders:
        inside = sorted(p for p in folder.iterdir() if p.is_file())
        files.update(inside)
        items = "".join(f'<li><a href="{folder.name}/{p.name}.html">{html.escape(p.name)}</a></li>' for p in inside)
        yield address(folder), _page(folder, f"<ul>{items}</ul>"), "page.html"
    for path in sorted(files):
        highlighter = app.builder.highlighter  # type: ignore[attr-defined]
        yield address(path), _page(path, highlighter.highlight_block(path.read_text(), _language(path))), "page.html"


def _page(path: Path, body: str) -> dict[str, Any]:
    name = path.relative_to(ROOT).as_posix()
    return {"title": name, "body": f"<h1><code>{html.escape(name)}</code></h1>{body}"}


def _language(path: Path) -> str:
    try:
        return str(get_lexer_for_filename(path.name).aliases[0])
    except ClassNotFound:
        return "text"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx."""
    app.add_config_value("navigation", {}, "env")
    app.connect("source-read", on_source_read)
    app.connect("html-collect-pages", file_pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
