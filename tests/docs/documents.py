"""The project's documents, taken apart into code blocks and links."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block and where it begins."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def blocks(language: str) -> list[Block]:
    """Return all blocks of a language; ``line`` is that of the block's first line."""
    return [
        Block(path, text.count("\n", 0, match.start(2)) + 1, match[2])
        for path in DOCUMENTS
        for text in [path.read_text()]
        for match in FENCE.finditer(text)
        if match[1] == language
    ]


def commands() -> list[Block]:
    """Return every line of the shell blocks that is a command."""
    return [
        Block(block.path, block.line + offset, line)
        for block in blocks("sh")
        for offset, line in enumerate(block.text.splitlines())
        if line.strip()
    ]


def words(command: Block) -> list[str]:
    """Split a command line as a shell would, without its comment."""
    return shlex.split(command.text, comments=True)


def links(path: Path) -> list[str]:
    """Return the targets of all links of a document outside of code blocks."""
    return LINK.findall(FENCE.sub("", path.read_text()))


def anchors(path: Path) -> set[str]:
    """Return the anchors that headings of a document make."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
