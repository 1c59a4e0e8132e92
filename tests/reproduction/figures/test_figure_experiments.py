"""Which experiments figures need: the paper's settings, shared where they are the same, and the quick ones."""

from __future__ import annotations

from itertools import product

import pytest

from fedfeat.config.config import make_config
from fedfeat.config.presets import Cell, experiment
from fedfeat.core.errors import FedfeatError
from fedfeat.runs.identity import identity
from fedfeat_reproduction.figures import FIGURES, FigureOptions, experiments_of
from fedfeat_reproduction.figures.curves import METHODS
from fedfeat_reproduction.figures.experiments import CIFAR10, configured, narrowed, published_accuracy

COUNTS = {"3": 2, "4": 2, "5": 3 * 4, "6": (3 + 3 + 2) * 4, "7": 1 + 3 * 3 * 2, "8": 3 * 4 * 4, "9": 2, "10": 1}
QUICK = {"3": 2, "4": 2, "5": 4, "6": 3 * 4, "7": 1 + 3 * 3 * 2, "8": 4 * 4, "9": 2, "10": 1}
COUNTS |= {f"{number}-text": COUNTS[number] for number in "67"}
QUICK |= {f"{number}-text": QUICK[number] for number in "67"}
KEPT = {"figure-3", "figure-4", "figure-9", "figure-10"}


def identities(name: str, quick: bool = False, seeds: tuple[int, ...] = (2023,)) -> set[str]:
    return {identity(config) for config in FIGURES[name].configs(quick, seeds)}


@pytest.mark.parametrize("number", COUNTS)
def test_how_many_and_all_different(number: str) -> None:
    name = f"figure-{number}"
    assert len(identities(name)) == len(FIGURES[name].configs(False, (2023,))) == COUNTS[number]
    assert len(identities(name, quick=True)) == len(FIGURES[name].configs(True, (2023,))) == QUICK[number]
    assert len(identities(name, seeds=(0, 1, 2))) == 3 * COUNTS[number]


def test_figures_share_their_runs_with_each_other_and_with_the_main_table() -> None:
    assert identities("figure-3") == identities("figure-4") == identities("figure-9")
    table = {m: identity(make_config(experiment(CIFAR10, m, 2023))) for m in METHODS}
    for name in ("figure-5", "figure-6", "figure-8"):
        assert set(table.values()) <= identities(name), name
    assert {table["fedcbdr+feat"], table["fedcbdr"]} <= identities("figure-7")
    assert identities("figure-5", quick=True) <= identities("figure-6", quick=True)


@pytest.mark.parametrize("name", FIGURES)
def test_quick_runs_need_nothing_but_the_built_in_digits(name: str) -> None:
    for config in FIGURES[name].configs(True, (2023,)):
        assert config.data.name == "digits"
        assert config.engine.device == "cpu"
        assert config.train.rounds <= 6
    full = FIGURES[name].configs(False, (2023,))
    assert {c.train.rounds for c in full} == {100}
    assert {c.run.keep_models for c in full} == {name in KEPT}
    assert {(c.scenario.beta, c.scenario.clients) for c in full} == {(0.5, 5)}


def test_settings_of_the_sweeps() -> None:
    budgets = {(c.data.name, c.scenario.budget) for c in FIGURES["figure-6"].configs(False, (0,))}
    assert budgets == {
        *(("cifar10", b) for b in (150, 300, 450)),
        *(("cifar100", b) for b in (500, 1000, 1500)),
        *(("tiny-imagenet", b) for b in (250, 500)),
    }
    text = {(c.data.name, c.scenario.budget) for c in FIGURES["figure-6-text"].configs(False, (0,))}
    assert text == {
        *(("cifar10", b) for b in (100, 150, 300)),
        *(("cifar100", b) for b in (125, 250, 500)),
        *(("tiny-imagenet", b) for b in (250, 500)),
    }
    grid = [c.to_table()["feat"] for c in FIGURES["figure-7-text"].configs(False, (0,)) if c.method != "fedcbdr"]
    points = {(feat["gsa"]["lambda"], feat["egc"]["rho"], feat["gsa"]["tau"]) for feat in grid}
    assert points == set(product((1.0, 5.0, 10.0), (0.5, 0.7, 0.9), (0.1, 0.5)))
    epochs = [c.train.local_epochs for c in FIGURES["figure-8"].configs(False, (0,))]
    assert {e: epochs.count(e) for e in set(epochs)} == {1: 12, 2: 12, 5: 12, 10: 12}
    ten = [c for c in FIGURES["figure-5"].configs(False, (0,)) if c.scenario.tasks == 10]
    assert {c.data.name for c in ten} == {"cifar100"}


@pytest.mark.parametrize(
    ("cell", "method", "overrides", "expected"),
    [
        (CIFAR10, "fedcbdr+feat", [], 70.19),
        (CIFAR10, "refed", [], 54.15),
        (Cell("tiny", 5, 0.5), "refed+feat", [], 27.36),
        (Cell("cifar100", 10, 0.5), "fedcbdr", [], 45.96),
        (CIFAR10, "fedcbdr+feat", ["scenario.budget=150"], None),
        (CIFAR10, "fedcbdr+feat", ["train.local_epochs=1"], None),
        (CIFAR10, "fedcbdr+etf", [], None),
    ],
)
def test_published_values_go_with_published_settings_only(
    cell: Cell, method: str, overrides: list[str], expected: float | None
) -> None:
    assert published_accuracy(configured(cell, method, 2023, quick=False, overrides=overrides)) == expected
    assert published_accuracy(configured(CIFAR10, method, 2023, quick=True)) is None


def test_only_keeps_data_sets_and_methods() -> None:
    configs = FIGURES["figure-6"].configs(False, (0,))
    assert narrowed(configs, "") == configs
    chosen = narrowed(configs, "cifar10, tiny-imagenet,fedcbdr")
    assert {(c.data.name, c.method) for c in chosen} == {("cifar10", "fedcbdr"), ("tiny-imagenet", "fedcbdr")}
    assert len(chosen) == 3 + 2
    assert {c.method for c in narrowed(configs, "cifar100")} == set(METHODS)
    with pytest.raises(FedfeatError, match="--only 'cifar': this figure has no such data set or method; did you mean"):
        narrowed(configs, "cifar")


def test_settings_change_in_all_experiments() -> None:
    configs = experiments_of(FIGURES["figure-6"], True, (0,), FigureOptions(("train.rounds=1",), "refed"))
    assert [(c.method, c.scenario.budget, c.train.rounds) for c in configs] == [("refed", b, 1) for b in (10, 20, 40)]


@pytest.mark.parametrize(
    ("number", "override", "varied"),
    [
        (5, "data.name=cifar10", "data.name"),
        (6, "scenario={budget=20}", "scenario.budget"),
        (7, "feat.gsa.lambda=0.1", "feat.gsa.lambda"),
        (7, "feat.egc.rho=0.3", "feat.egc.rho"),
        (7, "feat.gsa.tau=0.07", "feat.gsa.tau"),
        (8, "train.local_epochs=2", "train.local_epochs"),
    ],
)
def test_what_a_figure_varies_cannot_be_set(number: int, override: str, varied: str) -> None:
    with pytest.raises(
        FedfeatError, match=rf"--set {varied}: figure-{number} itself varies it \(.+, .+\); leave it out"
    ):
        experiments_of(FIGURES[f"figure-{number}"], False, (0,), FigureOptions((override,)))


def test_another_data_set_where_there_is_one() -> None:
    configs = experiments_of(FIGURES["figure-5"], False, (0,), FigureOptions(("data.name=cifar100",), "cifar10"))
    assert {c.data.name for c in configs} == {"cifar100"}


@pytest.mark.parametrize(
    ("number", "override", "reason"),
    [
        *((number, "scenario.tasks=1", "looks at classes of earlier tasks") for number in (3, 4, 9, 10)),
        (10, "feat.egc.enabled=false", "shows what EGC does; leave feat.egc.enabled=false out"),
        (10, "feat.egc.from_task=3", "shows what EGC does after task 2; leave feat.egc.from_task=3 out"),
    ],
)
def test_experiments_that_a_figure_cannot_be_drawn_from(number: int, override: str, reason: str) -> None:
    with pytest.raises(FedfeatError, match=f"figure-{number}: {reason}"):
        experiments_of(FIGURES[f"figure-{number}"], True, (0,), FigureOptions((override,)))
