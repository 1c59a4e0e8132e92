"""Names that methods outside of this project may still use, and what they are called today."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

API = "fedfeat.api"
# Names that moved to ``fedfeat.api``: under their own name, or under another one.
KEPT = (
    *("Buffers", "Capturable", "Client", "Config", "ETFHead", "Known", "LinearHead", "LossTerm", "Method", "Network"),
    *("NoSettings", "Op", "Outputs", "Payload", "Penalty", "Prediction", "Reference", "Seen", "Server", "ServerStep"),
    *("Settings", "State", "Statistic", "Step", "addon", "all_methods", "base", "calibrated", "choose", "compose"),
    *("count_right", "cross_entropy", "egc_correct", "egc_gate", "etf_cosine", "even_shares", "export_model"),
    *("group_energies", "gsa_loss", "herd", "int_at", "load_config", "load_trained", "make_config"),
    *("new_class_cross_entropy", "number_of", "resume", "rng_at", "simplex_etf", "soft_cross_entropy", "start"),
    *("tensor_of", "Trained", "FedfeatError", "ConfigError", "DataError", "CheckpointError", "MissingExtra"),
)
RENAMED = {
    "Boundary": "TaskEnd",
    "BoundaryStep": "TaskEndStep",
    "Look": "ReferenceFunction",
    "Push": "PenaltyGradient",
    "draw_at": "rng_at",
}
# Modules that hold whatever else their names were.
MODULES = {
    "fedfeat.draws": "fedfeat.core.rng",
    "fedfeat.errors": "fedfeat.core.errors",
    "fedfeat.files": "fedfeat.core.files",
    "fedfeat.settings": "fedfeat.core.settings",
    "fedfeat.federation.payload": "fedfeat.core.payload",
    "fedfeat.federation.client": "fedfeat.algorithm.client",
    "fedfeat.federation.boundary": "fedfeat.algorithm.task_end",
    "fedfeat.methods.method": "fedfeat.algorithm.method",
    "fedfeat.methods.registry": "fedfeat.algorithm.registry",
    "fedfeat.methods.losses": "fedfeat.algorithm.losses",
    "fedfeat.replay.rules": "fedfeat.methods.replay",
    "fedfeat.evaluate.metrics": "fedfeat.federation.metrics",
    "fedfeat.data.catalogue": "fedfeat.data.load",
    "fedfeat.data.cifar_classes": "fedfeat.data.cifar",
    "fedfeat.data.fit": "fedfeat.data.images",
    "fedfeat.data.locate": "fedfeat.data.settings",
    "fedfeat.data.statistics": "fedfeat.data.dataset",
    "fedfeat.experiment": "fedfeat.runs.experiment",
}
# Fields, methods and keywords; a dotted one only as it stands.
MEMBERS = {
    "at_boundary": "at_task_end",
    "boundary": "task_end",
    "wants_levels": "wants_intermediate",
    "levels": "intermediate",
    "with_levels": "with_intermediate",
    "client.config.seed": "client.seed",
    "client.config.train": "client.settings",
    "client.method.loss": "client.loss",
    "server.config.seed": "server.seed",
    "server.config.train": "server.settings",
    "server.config.scenario.clients": "server.num_clients",
}


def hint(source: str) -> str:
    """Return what an author has to write instead of names that are gone, as the end of a sentence; mostly nothing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    if not any("fedfeat" in ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)):
        return ""  # some other library's file: its fields may have any name
    instead = list(dict.fromkeys((*_imports(tree), *_members(tree))))
    return f"; it was written for an earlier version: take {', '.join(instead)}" if instead else ""


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedfeat."):
            for name in (alias.name for alias in node.names):
                if _is_gone(str(node.module), name):
                    yield from _today(str(node.module), name)
        elif isinstance(node, ast.Import):
            yield from (f"{MODULES[a.name]} for {a.name}" for a in node.names if a.name in MODULES)


def _today(module: str, name: str) -> Iterator[str]:
    if name in RENAMED:
        yield f"{API}.{RENAMED[name]} for {name}"
    elif name in KEPT:
        yield f"{API}.{name}"
    elif module in MODULES:
        yield f"{MODULES[module]}.{name}"
    elif f"{module}.{name}" in MODULES:
        yield f"{MODULES[f'{module}.{name}']} for {module}.{name}"


def _is_gone(module: str, name: str) -> bool:
    try:
        return not hasattr(importlib.import_module(module), name)
    except ImportError:
        return True


def _members(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.keyword(arg=str(name)):
                found = [name]
            case ast.Attribute(attr=name):
                found = [name, ast.unparse(node)]
            case _:
                found = []
        yield from (f"{MEMBERS[name]} for {name}" for name in found if name in MEMBERS)
