"""What the documents show works: Python runs and TOML is a valid experiment. Commands have a file of their own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, SHELL, Block, blocks, blocks_of

from fedfeat.config.config import make_config

LANGUAGES = {"python", "toml", "ini", "text", "bibtex", "{eval-rst}", *SHELL}


@pytest.mark.docs
@pytest.mark.parametrize("block", [b for b in blocks("python") if not b.file], ids=str)
def test_python_blocks_run(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Empty lines in front make a traceback name the line of the document.
    code = compile("\n" * (block.line - 1) + block.text, str(block.path), "exec")
    exec(code, {"__name__": "document"})


def test_toml_blocks_are_valid_experiments() -> None:
    for block in blocks("toml"):
        try:
            make_config(tomllib.loads(block.text))
        except Exception as error:
            error.add_note(str(block))
            raise


def test_no_block_escapes_these_tests() -> None:
    for path in DOCUMENTS:
        found = blocks_of(path)
        assert {block.language for block in found} <= LANGUAGES, path.name
        fences = re.findall(r"^.*(?:```|~~~).*$", path.read_text(), re.MULTILINE)
        assert len(fences) == 2 * len(found), f"{path.name}: a block is indented, not closed, or of another form"


def test_make_targets_in_tables_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make (\w+)`", (ROOT / "CONTRIBUTING.md").read_text() + (ROOT / "README.md").read_text()))
    assert named
    assert named <= targets
