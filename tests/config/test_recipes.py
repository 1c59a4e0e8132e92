"""Bundles of settings: laid over a configuration before --set, named in the result, the released one row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedfeat import cli
from fedfeat.config.config import load_config, make_config
from fedfeat.config.presets import COMPOSITIONS, Cell, experiment
from fedfeat.config.recipes import RECIPES, find_recipe, with_recipe
from fedfeat.config.renamed import as_recorded
from fedfeat.core.errors import ConfigError
from fedfeat.core.settings import flatten
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.identity import identity
from fedfeat.runs.sweep.grid import load_sweep
from fedfeat_reproduction.experiments import deciding_overrides
from fedfeat_reproduction.records import read_records, record_of_run
from fedfeat_reproduction.results import RecordIndex

ROOT = Path(__file__).parents[2]
# What the released programs do, point by point, as settings.
RELEASED: dict[str, dict[str, Any]] = {
    "weight decay": {"train.weight_decay": 5e-4},
    "learning rate": {"train.lr": 0.04, "train.lr_min": 1e-3, "train.schedule": "cosine_per_task"},
    "temperatures and weights": {
        "fedcbdr.tau_old": 0.9,
        "fedcbdr.tau_new": 1.1,
        "fedcbdr.weight_old": 1.1,
        "fedcbdr.weight_new": 1.0,
    },
    "logits divided at test time": {"fedcbdr.scale_logits": True},
    "exemplars kept of a task": {"fedcbdr.mode": "repo"},
    "replayed images are changed": {"train.paste": 0.5},
    "exemplars repeated": {"train.repeat_exemplars": 1},
    "GSA": {
        "feat.gsa.from_task": 1,
        "feat.gsa.lambda": 0.1,
        "feat.gsa.tau": 0.07,
        "feat.gsa.include_self": True,
    },
    "EGC's prior": {
        "feat.egc.prior": "ema",
        "feat.egc.rho": 0.8,
        "feat.egc.ema_convention": "eq9",
        "feat.egc.ema_init": "zero",
        "feat.egc.prior_order": "shuffled",
        "feat.egc.prior_source": "loader",
        "feat.egc.prior_transform": "train",
    },
    "model kept at the end of a task": {"train.model_selection": "lowest_train_loss"},
    "class order": {"scenario.class_order": "legacy", "scenario.order_seed": "run"},
    "partition": {"scenario.partition_seed": "legacy", "scenario.seed": 2023},
}
TINY: dict[str, Any] = {"train.schedule": "steps", "train.milestones": (50, 75)}


@pytest.mark.parametrize("point", RELEASED)
@pytest.mark.parametrize("data", ["cifar10", "cifar100", "tiny"])
def test_the_released_bundle_is_the_table_row_by_row(point: str, data: str) -> None:
    config = make_config(experiment(Cell(data, 5, 0.5), "fedcbdr+feat"), ["recipe=released"])
    found = flatten(config.to_table())
    expected = RELEASED[point] | (TINY if data == "tiny" and point == "learning rate" else {})
    assert {key: found[key] for key in expected} == expected


def test_the_released_bundle_has_nothing_that_is_not_in_the_table() -> None:
    told = {key: value for row in RELEASED.values() for key, value in row.items()}
    assert flatten(RECIPES["released"].settings) == told
    assert flatten(RECIPES["released"].only["tiny-imagenet"]) == TINY | {"train.milestones": [50, 75]}
    assert set(RECIPES["released"].only) <= {"tiny-imagenet"}


def test_fedcbdr_has_its_own_defaults_under_a_name() -> None:
    config = make_config({"method": "fedcbdr"}, ["recipe=fedcbdr-defaults"])
    found = config.to_table()["fedcbdr"]
    assert [found[key] for key in ("tau_old", "tau_new", "weight_old", "weight_new")] == [0.5, 0.5, 5.0, 1.0]


def test_every_built_in_bundle_fits_every_data_set() -> None:
    for name in RECIPES:
        for data in ("digits", "cifar10", "cifar100", "tiny-imagenet"):
            assert make_config({"data": {"name": data}}, [f"recipe={name}"]).recipe == name


def test_single_settings_come_after_the_bundle_and_the_bundle_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nweight_decay = 0.1\nrounds = 3\n")
    config = load_config(path, ["recipe=released", "train.lr=0.5"])
    assert (config.train.weight_decay, config.train.rounds, config.train.lr) == (5e-4, 3, 0.5)


def test_a_bundle_of_ones_own_has_settings_for_single_data_sets(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nlr = 0.2\nrounds = 4\n[only.digits.train]\nrounds = 2\n")
    digits, photographs = (with_recipe({"data": {"name": d}, "seed": 5}, str(path)) for d in ("digits", "cifar10"))
    assert digits == {"data": {"name": "digits"}, "seed": 5, "train": {"lr": 0.2, "rounds": 2}, "recipe": "mine"}
    assert photographs["train"] == {"lr": 0.2, "rounds": 4}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("method = 'fedcbdr'", "method does not belong in a recipe"),
        ("[only.digits]\nseed = 3", "seed does not belong in a recipe"),
        ("only = 3", "expected tables such as"),
        ("[train", "not a valid TOML file"),
    ],
)
def test_what_is_no_bundle_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        find_recipe(str(path))


def test_an_unknown_name_is_answered_with_the_nearest_and_an_unknown_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recipe of that name; .*released"):
        make_config({}, ["recipe=relased"])
    (tmp_path / "mine.toml").write_text("[train]\nweight_deca = 1\n")
    with pytest.raises(ConfigError, match=r"^--recipe .*mine\.toml: unknown key .train\.weight_deca."):
        make_config({}, [f'recipe="{tmp_path / "mine.toml"}"'])


def test_the_name_alone_makes_no_other_run() -> None:
    by_name = make_config({"method": "fedcbdr"}, ["recipe=fedcbdr-defaults"])
    by_hand = make_config({"method": "fedcbdr", **RECIPES["fedcbdr-defaults"].settings})
    assert identity(by_name) == identity(by_hand) != identity(make_config({"method": "fedcbdr"}))
    assert make_config(by_name.to_table()).recipe == "fedcbdr-defaults"


def test_a_sweep_varies_what_a_bundle_sets(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text('[sweep]\nbase = "digits"\nseeds = [1]\nsettings = { "train.weight_decay" = [0.0, 0.1] }\n')
    configs = load_sweep(path, ["train.rounds=2"], "released")
    assert [c.train.weight_decay for c in configs] == [0.0, 0.1]
    assert {(c.train.model_selection, c.train.rounds, c.recipe) for c in configs} == {
        ("lowest_train_loss", 2, "released")
    }


@pytest.mark.filterwarnings("ignore")
def test_a_run_names_its_bundle_in_folder_result_and_record(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["run", "digits", "--recipe", "released", "--set", "train.rounds=1", "--set", "scenario.tasks=2"]
    cli.app([*words, "--set", "train.local_epochs=1", "--out", str(out)], standalone_mode=False)
    folder = RunFolder.open(out)
    config, result = folder.config(), folder.result()
    assert result is not None
    assert config.recipe == result["recipe"] == record_of_run(out).recipe == "released"
    assert config.train.weight_decay == 5e-4
    assert '"recipe": "released"' in record_of_run(out).to_json()


def test_tables_are_read_as_they_were_run_with_a_bundle() -> None:
    assert deciding_overrides(["recipe=released", "engine.name=cuda"]) == ("recipe=released",)
    assert RecordIndex([], overrides=["recipe=released"]).overrides == ("recipe=released",)


CHOSEN = [f"--set={setting}" for setting in ("train.rounds=40", "train.weight_decay=0.0005", "model.init=pytorch")]


def test_the_recommended_recipe_is_what_its_recorded_runs_had() -> None:
    method = COMPOSITIONS["fedfeat"]
    bare = flatten(make_config(with_recipe({"method": method}, "fedfeat")).to_table())
    of_its_parts = (
        "model.",
        "train.",
        "fedcbdr.mode",
        "feat.logit",
        "feat.feature_head",
        "feat.etf.",
        "balanced.",
        "distil.",
    )
    expected = json.loads(json.dumps({key: value for key, value in bare.items() if key.startswith(of_its_parts)}))
    recorded = [flatten(as_recorded(r.config)) for r in read_records(ROOT / "results") if r.method == method]
    tested = [config for config in recorded if "data.validation" not in config]
    assert sum({key: config.get(key) for key in expected} == expected for config in tested) >= 10


@pytest.mark.parametrize(("data", "strength"), [("cifar10", 0.5), ("tiny-imagenet", 0.5), ("svhn", 0), ("digits", 0)])
def test_the_recommended_recipe_turns_photographs_and_no_digits(data: str, strength: float) -> None:
    table = {"method": "fedfeat", "data": {"name": data}}
    assert make_config(with_recipe(table, "fedfeat")).data.trivial == strength
    assert make_config({}, ["recipe=fedfeat", f"data.name={data}"]).data.trivial == strength
    assert make_config({}, ["recipe=fedfeat", f"data.name={data}", "data.trivial=0.2"]).data.trivial == 0.2


def test_the_recommended_composition_says_what_it_was_chosen_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = make_config({"method": "fedfeat+calibrate"}).method
    assert named == "fedcbdr+etf+balanced+distil+calibrate"
    small = ["--set", "scenario.tasks=1", "--set", "scenario.clients=2", "--dry-run"]
    for method, options, advised in (
        ("fedfeat", [], True),
        ("fedcbdr+etf+balanced+distil", ["--set", "train.weight_decay=0.0005"], True),
        ("fedfeat", ["--recipe", "fedfeat", "--set", "train.rounds=1"], False),
        ("fedfeat", CHOSEN, False),
        ("fedfeat+calibrate", ["--recipe", "fedfeat"], False),
        ("finetune", [], False),
    ):
        cli.app(["run", "digits", *options, "--set", f"method={method}", *small], standalone_mode=False)
        said = capsys.readouterr().out
        assert ("'--recipe fedfeat' sets that" in said) is advised, (method, options)
        assert ("train.rounds = 40" in said) is advised
        assert "this run trains" not in said
    cli.app(["run", "digits", "--recipe", "fedfeat", *small], standalone_mode=False)
    assert "and this run trains fedcbdr+feat; --set method=fedfeat" in " ".join(capsys.readouterr().out.split())
