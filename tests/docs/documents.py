"""The project's documents, taken apart into code blocks, commands and links.

Comments in the source of a page, directly in front of a block, tell the tests what to do with it:

    <!-- file: shapes.toml -->                          the reader saves the block under this name, and so do the tests
    <!-- not run (a GPU): fedfeat run, fedfeat bench --> lines that begin so are parsed and not run, for this reason
    <!-- not run on this page (a GPU): fedfeat paper --> the same for all blocks of a page; may stand anywhere

The reasons there are, and which commands each may excuse, are in ``REASONS``.
"""

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
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENTS = re.compile(r"(?:<!--(?:(?!-->).)*-->\s*)+\Z", re.DOTALL)
FILE = re.compile(r"<!-- file: (\S+) -->")
NOT_RUN = re.compile(r"<!-- not run \(([^)]+)\): (.+?) -->", re.DOTALL)
NOT_RUN_HERE = re.compile(r"<!-- not run on this page \(([^)]+)\): (.+?) -->", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SHELL = ("sh", "console")
REASONS = {
    "a GPU": r"\bcuda\b|bench gpu|^fedfeat queue",
    "downloads": r"\b(cifar|tiny|mnist)|table-\w+$",
    "several machines": r"^fedfeat (server|client) ",
    "a test of its own": r"^fedfeat (server|client|rollback) ",
    "installs": r"^(pip|make) ",
    "a CLIP model": r"^fedfeat teacher ",
    "minutes": r"--methods all .*--seeds 0,1,2|^fedfeat paper (run|show) figure-\d+ --quick|^fedfeat paper figures$|"
    r"^python benchmarks/",
    "tests of federations do": r"^fedfeat federate configs/digits.toml ",  # killed and continued, in test_chaos.py
    "another page does": r"",
}


class Block(NamedTuple):
    """A fenced block, where it begins, and the comments in front of it."""

    path: Path
    line: int
    text: str
    language: str = ""
    comments: str = ""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name under which a reader saves the block."""
        found = FILE.search(self.comments)
        return found[1] if found else None


class Command(NamedTuple):
    """A line of a shell block; ``excuse`` is the reason for which it is not run."""

    path: Path
    line: int
    text: str
    excuse: str | None

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def words(self) -> list[str]:
        """The line as a shell would split it, without its comment."""
        return shlex.split(self.text, comments=True)


def blocks_of(path: Path) -> list[Block]:
    """Return all blocks of a document; ``line`` is that of a block's first line."""
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        comments = COMMENTS.search(text[: match.start()])
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(path, line, match[2], match[1].strip(), comments[0] if comments else ""))
    return found


def blocks(language: str) -> list[Block]:
    """Return all blocks of a language."""
    return [block for path in DOCUMENTS for block in blocks_of(path) if block.language == language]


def excuses(text: str, pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    """Return (reason, beginning of a line) of every marker in a text, outside of its code blocks."""
    found = pattern.findall(FENCE.sub("", text))
    return [(reason, " ".join(begin.split())) for reason, begins in found for begin in begins.split(",")]


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a shell block."""
    known = [*excuses(block.comments, NOT_RUN), *excuses(block.path.read_text(), NOT_RUN_HERE)]
    return [
        Command(block.path, block.line + offset, line, next((r for r, p in known if line.startswith(p)), None))
        for offset, line in enumerate(block.text.splitlines())
        if line.strip()
    ]


def commands() -> list[Command]:
    """Return every command of the documents."""
    return [c for language in SHELL for block in blocks(language) for c in commands_of(block)]


def links(path: Path) -> list[str]:
    """Return the targets of all links of a document outside of code blocks."""
    return LINK.findall(FENCE.sub("", path.read_text()))


def anchors(path: Path) -> set[str]:
    """Return the anchors that headings of a document make."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
