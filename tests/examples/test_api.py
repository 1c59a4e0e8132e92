"""``fedfeat.api``: documented, listed, light, and all that examples and guides import."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedfeat import api

ROOT = Path(__file__).resolve().parents[2]
ALIASES = {"Payload", "State", "Op", "ReferenceFunction", "PenaltyGradient", "Buffers", "Head"}
# Pages for authors and callers; others show what is inside.
PAGES = [
    *("CONTRIBUTING.md", "README.md", "docs/api/index.md", "docs/pieces.md", "docs/predict.md"),
    *("docs/write-your-own-method.md", "docs/tutorial/your-own-method.md", "docs/tutorial/use-the-model.md"),
]
HEAVY = {"matplotlib", "plotly", "sklearn", "pyarrow", "PIL", "flwr", "ray", "triton", "transformers", "onnx"}


def test_every_name_is_documented_and_listed_and_there_once() -> None:
    page = (ROOT / "docs" / "api" / "index.md").read_text()
    assert {name for name in api.__all__ if f"`{name}`" not in page} == set()
    # A docstring that Python made up says nothing.
    said = {name: getattr(api, name).__doc__ or f"{name}(" for name in set(api.__all__) - ALIASES}
    assert {name for name, words in said.items() if words.startswith(f"{name}(")} == set()
    assert len(set(api.__all__)) == len(api.__all__)
    imported = {name for name in vars(api) if not name.startswith("_")}
    assert imported == set(api.__all__)


def test_examples_and_guides_import_nothing_else_of_ours() -> None:
    for path in (*(ROOT / "examples").glob("*.py"), *(ROOT / page for page in PAGES)):
        modules = re.findall(r"^\s*(?:from|import) (fedfeat\S*)", path.read_text(), re.MULTILINE)
        assert set(modules) <= {"fedfeat.api"}, path
        assert path.suffix == ".md" or modules, path


@pytest.mark.processes
def test_importing_it_loads_no_optional_package() -> None:
    code = f"import sys, fedfeat.api; print({HEAVY!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
