"""Experiments of the paper: the settings it prints, and common random numbers for all methods of a cell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedfeat.config.config import make_config
from fedfeat.config.presets import PRESETS, PUBLISHED, Cell, experiment
from fedfeat.data import DataSettings, load_dataset
from fedfeat.data.dataset import Dataset
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.identity import identity
from fedfeat_reproduction.experiments import TableRuns, engine_overrides, first_seeds, settings
from fedfeat_reproduction.tables import BASELINES, MAIN, TABLES, Value, further_entries, select


def test_the_experiment_has_what_the_paper_prints() -> None:
    config = make_config(experiment(Cell("cifar10", 3, 1.0, 10), "refed+feat", 2024))
    assert (config.method, config.seed, config.data.name) == ("refed+feat", 2024, "cifar10")
    scenario, train = config.scenario, config.train
    assert (scenario.tasks, scenario.clients, scenario.beta, scenario.budget) == (3, 10, 1.0, 450)
    assert (train.rounds, train.local_epochs, train.batch, train.lr, train.weight_decay) == (100, 2, 128, 0.04, 1e-5)
    assert make_config(experiment(Cell("tiny", 5, 0.1), "fedcbdr")).data.name == "tiny-imagenet"


def test_presets_carry_the_published_value_of_the_main_table() -> None:
    for preset in PRESETS.values():
        make_config(preset.table())
    for (data, tasks), (mean, deviation) in PUBLISHED.items():
        cell = Cell(data, tasks, 0.5)
        (entry,) = (e for e in TABLES[MAIN].entries if (e.cell, e.method) == (cell, "fedcbdr+feat"))
        assert entry.published == Value(mean, deviation)
        assert f"the paper reports {mean} ± {deviation} for FEAT_F" in PRESETS[cell.split].summary


def stand_in(seed: int) -> Dataset:
    """Noise in the shape of the digits, so that no method has to wait for a data set."""
    return load_dataset(DataSettings(name="digits"), seed=seed)


def test_all_methods_of_a_cell_share_classes_clients_and_initial_weights() -> None:
    cell = Cell("cifar10", 5, 0.5)
    experiments = [
        Experiment(make_config(settings(cell, method, seed, quick=True)), stand_in(seed))
        for method in BASELINES.values()
        for seed in (2023,)
    ]
    first = experiments[0]
    weights = [{k: v.clone() for k, v in e.engine.network.backbone.state_dict().items()} for e in experiments]
    for other, state in zip(experiments, weights, strict=True):
        assert other.scenario.class_order == first.scenario.class_order
        for task in range(5):
            a, b = first.scenario.splits[task], other.scenario.splits[task]
            assert np.array_equal(a.indices, b.indices)
            assert np.array_equal(a.sizes, b.sizes)
        assert all(torch.equal(state[k], weights[0][k]) for k in state)
    another = Experiment(make_config(settings(cell, "fedcbdr", 2024, quick=True)), stand_in(2024))
    assert another.scenario.class_order != first.scenario.class_order


def test_only_words_of_one_kind_are_alternatives_and_kinds_must_all_fit() -> None:
    entries = TABLES["table-main"].entries
    assert len(select(entries, "cifar10-5,beta0.5,k5,fedcbdr+feat")) == 1
    assert len(select(entries, "cifar10-5,beta0.5,k5")) == 9
    assert len(select(entries, "cifar10,beta0.50,FEAT_F,fedcbdr")) == 2 * 2 * 2
    assert len(select(entries, "cifar10-5-beta0.5-k5")) == 9
    assert select(entries, "tiny,beta1.0") == []
    ablation = select(TABLES["table-ablation"].entries, "feat_f,cifar10-3,beta0.5")
    assert [e.label for e in ablation] == ["+ETF+GSA+EGC"]
    assert len(select(entries, "")) == 216
    with pytest.raises(Exception, match="--only 'k7': nothing in this table is called so"):
        select(entries, "k7")


def test_further_methods_come_without_a_published_value() -> None:
    chosen = select(TABLES["table-main"].entries, "cifar10-5,beta0.5,k5")
    further = further_entries(chosen, "finetune, fedcbdr")
    assert [(e.method, e.published) for e in further] == [("finetune", None)]
    with pytest.raises(Exception, match="no method or add-on is called 'finetun'"):
        further_entries(chosen, "finetun")


def test_each_training_is_planned_once_however_many_figures_it_gives() -> None:
    ablation = select(TABLES["table-ablation"].entries, "cifar10-3,beta0.5")
    configs, refused = TableRuns(seeds=(1, 2)).configs(ablation)
    assert refused == []
    assert [(c.seed, c.method) for c in configs] == [
        (seed, method) for seed in (1, 2) for method in ("fedcbdr", "fedcbdr+etf+egc", "fedcbdr+feat")
    ]
    calibrated, _ = TableRuns(seeds=(1,), calibrate=True).configs(ablation)
    assert {c.method for c in calibrated} == {
        "fedcbdr+calibrate",
        "fedcbdr+etf+egc+calibrate",
        "fedcbdr+feat+calibrate",
    }
    main, _ = TableRuns(seeds=(1,), calibrate=True).configs(
        select(TABLES["table-main"].entries, "cifar10-5,k5,beta0.5")
    )
    assert {c.method for c in main} >= {"fedewc", "refed+calibrate", "refed+feat+calibrate"}


def test_what_cannot_be_run_here_is_said_and_the_rest_is_planned() -> None:
    entries = select(TABLES["table-strategies"].entries, "cifar10,beta0.5")
    configs, refused = TableRuns(seeds=(1, 2)).configs(entries)
    assert len(configs) == 2 * 5
    assert len(refused) == 1
    assert refused[0].startswith("fedcbdr+clip2fl: clip2fl.teacher")


def test_quick_has_every_method_of_every_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFEAT_HOME", str(tmp_path))
    for table in TABLES.values():
        configs, refused = TableRuns(seeds=(1,), quick=True).configs(table.entries)
        assert refused == []
        assert {c.data.name for c in configs} == {"digits"}
    configs, _ = TableRuns(seeds=(1,), quick=True).configs(TABLES["table-main"].entries)
    assert len({identity(c) for c in configs}) == 9 * 14  # data sets with as many tasks share a run


def test_settings_behind_options() -> None:
    table = experiment(Cell("cifar10", 5, 0.5), "fedcbdr")
    config = make_config(table, engine_overrides("cuda", Path("some where")))
    assert (config.engine.name, config.engine.device, config.engine.precision) == ("cuda", "cuda", "bf16")
    assert config.data.path == "some where"
    assert engine_overrides(None, None) == []
    assert first_seeds(2) == (2023, 2024)


@pytest.mark.parametrize(("data", "weight"), [("cifar10", 5.0), ("cifar100", 1.0), ("tiny", 1.0)])
def test_moon_has_its_published_weight_for_each_data_set(data: str, weight: float) -> None:
    config = make_config(settings(Cell(data, 5, 0.5), "fedcbdr+moon"))
    assert config.to_table()["moon"]["mu"] == weight
    assert make_config({"method": "fedcbdr+moon"}).to_table()["moon"]["mu"] == 1.0
