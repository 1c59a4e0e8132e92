"""Bundles of settings by name: laid over any configuration before ``--set``, and named in what a run leaves behind.

A bundle says how to train and predict, never what: method, seed and data set stay those of the configuration. A file of
one's own holds the same tables as a configuration. Below ``[only.NAME]`` it holds those for one data set alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfeat.core.errors import ConfigError, nearest
from fedfeat.core.settings import merge

Table = dict[str, Any]
ONLY = "only"  # table of the settings for single data sets
PHOTOGRAPHS = ("cifar10", "cifar100", "tiny-imagenet")
FIXED = ("method", "seed", "plugins", "recipe", "run")


@dataclass(frozen=True)
class Recipe:
    """Settings for all data sets, and more for some."""

    name: str
    summary: str
    settings: Mapping[str, Any]
    only: Mapping[str, Mapping[str, Any]]

    def table(self, dataset: str) -> Table:
        """Return the settings for a data set, with the name of the bundle among them."""
        return {**merge(self.settings, self.only.get(dataset, {})), "recipe": self.name}


# What the authors' programs do beyond their papers, where both have a value that of FEAT's.
_RELEASED = Recipe(
    "released",
    "what the released programs of FEAT and FedCBDR do beyond their papers",
    {
        "scenario": {"class_order": "legacy", "order_seed": "run", "partition_seed": "legacy", "seed": 2023},
        "train": {
            "lr": 0.04,
            "lr_min": 1e-3,
            "schedule": "cosine_per_task",
            "weight_decay": 5e-4,
            "model_selection": "lowest_train_loss",
            "paste": 0.5,
            "repeat_exemplars": 1,
        },
        "fedcbdr": {
            "mode": "repo",
            "tau_old": 0.9,
            "tau_new": 1.1,
            "weight_old": 1.1,
            "weight_new": 1.0,
            "scale_logits": True,
        },
        "feat": {
            "gsa": {"from_task": 1, "lambda": 0.1, "tau": 0.07, "include_self": True},
            "egc": {
                "prior": "ema",
                "rho": 0.8,
                "ema_convention": "eq9",
                "ema_init": "zero",
                "prior_order": "shuffled",
                "prior_source": "loader",
                "prior_transform": "train",
            },
        },
    },
    {"tiny-imagenet": {"train": {"schedule": "steps", "milestones": [50, 75]}}},
)
_TEMPERATURES = Recipe(
    "fedcbdr-defaults",
    "temperatures and weights that the released program of FedCBDR has by default",
    {"fedcbdr": {"tau_old": 0.5, "tau_new": 0.5, "weight_old": 5.0, "weight_new": 1.0}},
    {},
)
_RECOMMENDED = Recipe(
    "fedfeat",
    "what the composition of this name was chosen with: 40 rounds per task, weight decay 5e-4, cosines times 16, "
    "exemplars equally many of each class, PyTorch's initial weights; TrivialAugment at half its strength on CIFAR and "
    "TinyImageNet",
    {
        "model": {"init": "pytorch"},
        "train": {"rounds": 40, "weight_decay": 5e-4},
        "fedcbdr": {"mode": "class_quota"},
        "feat": {"logits": "cosine", "logit_scale": 16.0},
    },
    {name: {"data": {"trivial": 0.5}} for name in PHOTOGRAPHS},  # digits and letters are not to be turned
)
RECIPES = {recipe.name: recipe for recipe in (_RECOMMENDED, _RELEASED, _TEMPERATURES)}


def find_recipe(name: str) -> Recipe:
    """Return a built-in bundle, or the one in a TOML file; what is neither is refused."""
    if name in RECIPES:
        return RECIPES[name]
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(f"--recipe {name}: no such file, and no recipe of that name; {nearest(name, RECIPES)}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--recipe {name}: not a valid TOML file ({error})") from error
    only = table.pop(ONLY, {})
    for part in (table, *only.values()) if isinstance(only, dict) else (table,):
        for key in FIXED:
            if key in part:
                raise ConfigError(f"--recipe {name}: {key} does not belong in a recipe; write it in the configuration")
    if not isinstance(only, dict) or not all(isinstance(part, dict) for part in only.values()):
        raise ConfigError(f"--recipe {name}: expected tables such as [{ONLY}.cifar10.train] below {ONLY}")
    return Recipe(path.stem, f"settings of {path}", table, only)


def with_recipe(table: Mapping[str, Any], name: str | None, dataset: str | None = None) -> Table:
    """Return the tables of a configuration with a bundle on top; without a name, as they are.

    :param dataset: the data set that it is for; by default that of the configuration.
    """
    if name is None:
        return dict(table)
    return merge(table, find_recipe(name).table(dataset_of(table) if dataset is None else dataset))


def dataset_of(*tables: Mapping[str, Any]) -> str:
    """Return the last name of a data set that tables give, or nothing."""
    parts = [table["data"] for table in tables if isinstance(table.get("data"), Mapping)]
    return next((str(part["name"]) for part in reversed(parts) if "name" in part), "")
