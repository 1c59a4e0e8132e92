"""Methods written for an earlier version: told in one sentence what to write today, and following it is enough."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedfeat import api
from fedfeat.config import old_names, plugins
from fedfeat.config.config import make_config
from fedfeat.core.errors import ConfigError
from fedfeat.methods import PARTS
from fedfeat.runs.experiment import start
from toy import toy_table, write_toy

FOLDER = Path(__file__).parent / "methods"  # the examples of that version, unchanged
METHODS = {"my_method.txt": "unsure+compact", "custom_replay_rule.txt": "far_apart+feat"}


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    kept = [(table, dict(table)) for table in (PARTS, plugins._contents, plugins._files)]
    yield
    for table, before in kept:
        table.clear()  # type: ignore[attr-defined]
        table.update(before)  # type: ignore[attr-defined]


def refusal(text: str, folder: Path, method: str = "mine") -> str:
    """Return what the loader says about a file."""
    path = folder / "mine.py"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        make_config({**toy_table(method=method), "plugins": [str(path)]})
    return str(caught.value)


def rewritten(text: str, sentence: str) -> str:
    """Do what the sentence says and nothing else."""
    imported = ["base", "addon", "Method", "LossTerm", "make_config"]  # these still work where they were
    for advice in sentence.partition(": take ")[2].split(", "):
        new, _, old = advice.partition(" for ")
        name = new.removeprefix("fedfeat.api.")
        if name != new:
            imported.append(name)
        text = re.sub(rf"\b{re.escape(old)}\b", name, text) if old else text
    text = re.sub(r"^from fedfeat\..*\n", "", text, flags=re.MULTILINE)
    return text.replace("import torch\n", f"import torch\nfrom fedfeat.api import {', '.join(imported)}\n", 1)


@pytest.mark.parametrize("name", METHODS)
def test_an_old_example_is_told_all_its_new_names_at_once(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_text()
    sentence = refusal(text, tmp_path, METHODS[name])
    assert re.search(r"mine.py, line \d+: ModuleNotFoundError: No module named 'fedfeat\.", sentence)
    assert "it was written for an earlier version: take " in sentence
    for advice in ("fedfeat.api.TaskEnd for Boundary", "fedfeat.api.Settings", "at_task_end for at_boundary"):
        assert advice in sentence
    assert len(sentence.splitlines()) == 1

    write_toy(tmp_path / "toy.npz")
    (tmp_path / "mine.py").write_text(rewritten(text, sentence))
    table = toy_table(method=METHODS[name], data={"path": str(tmp_path / "toy.npz")})
    result = start(make_config({**table, "plugins": [str(tmp_path / "mine.py")]}), tmp_path / "run")
    assert len(result["accuracy_after_task"]) == 3


HEAD = "from fedfeat.methods import LossTerm, Method, addon, base\n"
BUILD = "@base('mine')\ndef mine(settings):\n    return Method('mine', {})\n"
CASES = {  # a file, and what it is told
    "module": ("import fedfeat.draws as draws\n", "take fedfeat.core.rng for fedfeat.draws$"),
    "function": ("from fedfeat.draws import draw_at\n", "take fedfeat.api.rng_at for draw_at$"),
    "elsewhere": ("from fedfeat.replay.rules import Herding\n", "take fedfeat.methods.replay.Herding$"),
    "part of a package": ("from fedfeat.federation import payload\n", "take fedfeat.core.payload for fedfeat.federati"),
    "keyword": (
        HEAD + BUILD.format("wants_levels=True"),
        "take wants_intermediate for wants_levels$",
    ),
    "field": (HEAD + BUILD.format("boundary=()"), "'boundary'; it was .*: take task_end for boundary$"),
    "part": (
        HEAD
        + "class Old:\n    after_last = False\n    def ops(self): return {}\n"
        + "    def at_boundary(self, b): b.seed = client.config.seed\n"
        + BUILD.format("replay=Old()"),
        r": Old has no at_task_end; inherit from fedfeat.api.TaskEndStep; it was .*: "
        r"take at_task_end for at_boundary, client.seed for client.config.seed$",
    ),
    "not old": (
        HEAD + BUILD.format("penalties=(object(),)"),
        "object has no name and no start; inherit from .*Penalty$",
    ),
    "never there": ("from fedfeat.api import Nothing\n", r"cannot import name 'Nothing' from 'fedfeat.api' \(.*\)$"),
}


@pytest.mark.parametrize(("text", "words"), CASES.values(), ids=CASES)
def test_what_a_file_is_told(text: str, words: str, tmp_path: Path) -> None:
    assert re.search(words, refusal(text, tmp_path)), refusal(text, tmp_path)


def test_every_name_that_is_advised_exists() -> None:
    assert {*old_names.KEPT, *old_names.RENAMED.values()} <= set(api.__all__)
    for module in old_names.MODULES.values():
        importlib.import_module(module)
    assert hasattr(api.TaskEndStep, "at_task_end")
    assert {"task_end", "wants_intermediate"} <= set(api.Method.__dataclass_fields__)
    assert "intermediate" in api.Step._fields
    assert hasattr(api.Network, "with_intermediate")
    assert {"seed", "settings", "loss"} <= set(api.Client.__dataclass_fields__)
    assert {"seed", "settings", "num_clients"} <= set(api.Server.__dataclass_fields__)


def test_names_that_still_work_are_not_mentioned() -> None:
    assert old_names.hint("from fedfeat.methods import Method\nfrom fedfeat.config.config import make_config\n") == ""
    assert old_names.hint("def broken(:\n") == ""
    assert old_names.hint("import torch\ntree.levels\n") == "", "another library's file"
    assert old_names.hint("from fedfeat.api import Step\nstep.levels\n").endswith("take intermediate for levels")
