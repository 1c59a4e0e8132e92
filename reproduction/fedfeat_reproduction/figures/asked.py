"""What was asked of a figure: which of its experiments, and with which settings changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from fedfeat.config import Config, make_config
from fedfeat.core.errors import FedfeatError
from fedfeat.core.settings import flatten
from fedfeat_reproduction.changed import counting
from fedfeat_reproduction.figures.experiments import narrowed
from fedfeat_reproduction.figures.figure import PaperFigure


@dataclass(frozen=True)
class Asked:
    """Changed settings (``KEY=VALUE``) and a choice of data sets and methods; a figure as published has neither."""

    overrides: tuple[str, ...] = ()
    only: str = ""

    @property
    def text(self) -> str:
        """Say how the figure differs from the usual one, nothing where it does not."""
        changes = [f"--set {override}" for override in counting(self.overrides)]
        changes += [f"--only {self.only}"] * bool(self.only)
        return f"drawn with {', '.join(changes)}" if changes else ""

    def to_json(self) -> dict[str, Any]:
        """Return entries for the figure's JSON; where and how its runs are computed is no part of a figure."""
        return {"set": list(counting(self.overrides)), "only": self.only}

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """Read what ``to_json`` gave; a figure of an earlier version does not say."""
        return cls(tuple(table.get("set", ())), str(table.get("only", "")))


USUAL = Asked()


def experiments_of(figure: PaperFigure, quick: bool, seeds: Sequence[int], asked: Asked = USUAL) -> list[Config]:
    """Return the experiments of a figure as asked for; what it could not be drawn from is refused."""
    usual = narrowed(figure.configs(quick, seeds), asked.only)
    configs = [make_config(config.to_table(), asked.overrides, where="--set") for config in usual]
    for key in figure.varies:
        values = _values(usual, key)
        if len(values) > 1 and set(values) != set(_values(configs, key)):
            shown = ", ".join(map(str, values))
            raise FedfeatError(f"--set {key}: {figure.name} itself varies it ({shown}); leave it out")
    objection = figure.objection(configs)
    if objection is not None:
        raise FedfeatError(f"{figure.name}: {objection}")
    return configs


def _values(configs: Sequence[Config], key: str) -> list[Any]:
    found = (flatten(config.to_table()).get(key) for config in configs)
    return list(dict.fromkeys(value for value in found if value is not None))
