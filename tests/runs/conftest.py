"""A toy problem in a file, for runs in folders and in other processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_toys import MakeConfig

from fedfeat.config import plugins
from fedfeat.config.config import Config, make_config
from fedfeat.methods import PARTS
from toy import toy_table, write_toy


@pytest.fixture(scope="session")
def toy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy") / "toy.npz")


@pytest.fixture(scope="session")
def toy(toy_file: Path) -> MakeConfig:
    def make(method: str = "finetune", **changes: Any) -> Config:
        data = {"path": str(toy_file), **changes.pop("data", {})}
        return make_config(toy_table(method=method, data=data, **changes))

    return make


ODD_METHODS = """
import os, signal
from fedfeat.methods.finetune import FinetuneSettings, finetune
from fedfeat.methods import base

@base("loud")
def loud(settings):
    \"\"\"Prints where programs listen to one another.\"\"\"
    print("loud words")
    return finetune(FinetuneSettings())

@base("deadly")
def deadly(settings):
    \"\"\"Kills the process that uses it, other than that of the tests.\"\"\"
    if os.environ["SAFE_PROCESS"] != str(os.getpid()):
        os.kill(os.getpid(), signal.SIGKILL)
    return finetune(FinetuneSettings())
"""


@pytest.fixture(scope="module")
def odd_methods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """Settings that bring the methods ``loud`` and ``deadly``; they are gone after the tests of a file."""
    path = tmp_path_factory.mktemp("odd") / "odd.py"
    path.write_text(ODD_METHODS)
    kept = [(table, dict(table)) for table in (PARTS, plugins._contents, plugins._files)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAFE_PROCESS", str(os.getpid()))
        yield {"plugins": [str(path)]}
    for table, before in kept:
        table.clear()  # type: ignore[attr-defined]
        table.update(before)  # type: ignore[attr-defined]
