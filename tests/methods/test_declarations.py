"""What methods declare is all that the library knows of them: it names neither methods nor what they send."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fedfeat
from fedfeat.methods import PARTS

SOURCES = Path(fedfeat.__file__).parent
# Words of a method or an entry that also mean something else, and what they mean there.
ORDINARY = {
    "samples": "how many images a client trained on: part of every reply",
    "weights": "the model's vector: part of every request",
    "shared.previous_model": "what the loop sends where a method keeps the previous model",
    "features": "what a backbone makes of an image",
    "held_out": "samples that a client does not train on",
    "counts": "of classes, in the record of a scenario",
    "quota": "of a disk",
    "right": "a side of a column, or not wrong",
    "etf": "a classifier's geometry, in the purposes of its random draws",
    "balanced": "a split of EMNIST",
    "calibrate": "an option of the reproduction's command",
}
# Modules that belong to a method outside its folder.
OF_A_METHOD = {
    "config/presets.py": "named experiments name their methods",
    "config/recipes.py": "named bundles name the settings of methods",
    "cli/teacher.py": "the command that writes the file of a method's teacher",
    "cli/templates/addon.py": "an example of a composition",
    "api.py": "helpers for authors that methods use too",
}


def outside() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        if not name.startswith("methods/") and name not in OF_A_METHOD:
            yield name, ast.parse(path.read_text())


def literals(tree: ast.Module) -> Iterator[str]:
    """Yield strings that the program uses: neither docstrings nor comments."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and node.body]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def declared() -> set[str]:
    sent = {sent.name for part in PARTS.values() for sent in part.sends}
    return {*PARTS, *(name for name in sent if not name.endswith("*"))}


def words(text: str) -> set[str]:
    return set(re.split(r"[^\w.]+", text))


def test_no_module_names_a_method_or_what_one_sends() -> None:
    names = declared() - {*ORDINARY}
    assert {"fedcbdr", "egc", "prior_head", "control_change", "fedfsa.means"} <= names
    found = [(module, text) for module, tree in outside() for text in literals(tree) if names & words(text)]
    assert found == [], "read the declarations of parts instead"


def test_no_module_imports_from_a_method() -> None:
    imported = [
        (module, node.module)
        for module, tree in outside()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedfeat.methods.")
    ]
    assert imported == []


def test_the_exceptions_are_needed() -> None:
    used = {word for _, tree in outside() for text in literals(tree) for word in words(text)}
    assert set(ORDINARY) <= used & declared()
    assert all((SOURCES / name).is_file() for name in OF_A_METHOD)
