"""One identity of a run: the settings that decide a result, and the names that folders have had from the beginning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sweep_toys import MakeConfig

from fedfeat.config.config import Config, make_config
from fedfeat.config.presets import PRESETS
from fedfeat.config.renamed import BEFORE, as_recorded, with_new_names
from fedfeat.core.errors import CheckpointError
from fedfeat.core.settings import flatten
from fedfeat.runs.identity import (
    changed_settings,
    decides,
    deciding_settings,
    folder_name,
    identity,
    refuse_other_run,
    tell_apart,
)

# Folders of version 0.1 are found again: keys are written as they were called then.
FIRST_NAMES: list[tuple[str, dict[str, Any]]] = [
    ("digits-5-beta0.5-k5-fedcbdr+feat-seed2023-c2f342413b", {}),
    ("digits-5-beta0.5-k5-finetune-seed1-73d1930ed0", {"method": "finetune", "seed": 1}),
    (
        "cifar10-5-beta0.5-k5-fedcbdr-seed2023-4e16dac6e8",
        {"method": "fedcbdr", "data": {"name": "cifar10"}, "fedcbdr": {"mode": "class_quota"}},
    ),
    ("digits-5-beta0.5-k5-fedcbdr-seed2023-8f1e988b94", {"method": "fedcbdr", "fedcbdr": {"mask_block": 7}}),
    (
        "cifar100-10-beta0.1-k5-refed+feat-seed2023-cbe2884438",
        {
            "method": "refed+feat",
            "data": {"name": "cifar100", "path": "/somewhere"},
            "scenario": {"tasks": 10, "beta": 0.1},
        },
    ),
    (
        "npz-5-beta0.5-k5-herding+feat-seed2023-c46cdeb84e",
        {"method": "herding+feat", "data": {"name": "npz", "path": "/images/own.npz"}},
    ),
    (
        "digits-5-beta0.5-k5-lander-seed2023-d3da54b1e6",
        {"method": "lander", "run": {"out": "x", "keep_models": True}, "federation": {"quorum": 0.9}},
    ),
    (
        "digits-5-beta0.5-k5-finetune-seed2023-4f8f076f16",
        {"method": "finetune", "engine": {"together": 1, "precision": "bf16"}},
    ),
    (
        "digits-5-beta0.5-k5-fedcbdr+feat-seed2023-6ae89885a0",
        {"method": "fedcbdr+feat", "mirror": {"tensorboard": True}, "feat": {"logits": "cosine"}},
    ),
    (
        "digits-5-beta0.5-k5-target-seed2023-1c1a445804",
        {"method": "target", "privacy": {"clip": 1.0}, "train": {"lr": 0.1, "rounds": 3}},
    ),
    (
        "digits-5-beta0.5-k5-fedcbdr+feat+calibrate-seed2023-84a712d80d",
        {"method": "fedcbdr+feat+calibrate", "calibrate": {"deltas": [0.0, 1.0]}, "model": {"norm": "group"}},
    ),
    ("digits-5-beta0.5-k5-fedcbdr+feat-seed2023-c1d8981a0a", PRESETS["digits"].table()),
    ("cifar10-5-beta0.5-k5-fedcbdr+feat-seed2023-bd69ab6acd", PRESETS["cifar10-5"].table()),
]


@pytest.mark.filterwarnings("ignore:.*is called.*now")
@pytest.mark.parametrize(("name", "table"), FIRST_NAMES)
def test_a_folder_keeps_the_name_it_had_in_the_first_version(name: str, table: dict[str, Any]) -> None:
    assert folder_name(written_by_the_first_version(make_config(table))) == name


def written_by_the_first_version(config: Config) -> Config:
    """What the first version wrote into a run folder, read today: none of the settings that came later are in it."""
    table = config.to_table()
    for key in BEFORE:
        *outer, name = key.split(".")
        inside = table
        for part in outer:
            inside = inside.get(part, {})
        inside.pop(name, None)
    return make_config(as_recorded(table))


def test_what_is_done_otherwise_today_is_another_run() -> None:
    """No run of before is found again under a setting it did not have."""
    today = make_config({"method": "fedcbdr+feat+calibrate", "feat": {"keep_tts": True}})
    found = flatten(deciding_settings(today))
    changed = {key: value for key, value in BEFORE.items() if key in found and found[key] != value}
    assert {"feat.egc.prior_order", "fedcbdr.scale_logits"} <= set(changed)
    for key, value in changed.items():
        before = make_config(today.to_table(), [f"{key}={json.dumps(value)}"])
        assert identity(today) != identity(before)
        assert key in flatten(changed_settings(today))
        assert key not in flatten(changed_settings(before))
        folder = with_new_names(written_by_the_first_version(today).to_table())
        with pytest.raises(CheckpointError, match=key):
            refuse_other_run(Path(), today, folder)


@pytest.mark.filterwarnings("ignore:.*is called.*now")
def test_settings_of_a_first_checkpoint_are_understood_and_others_refused_by_key(tmp_path: Path) -> None:
    config = make_config({"method": "finetune", "engine": {"together": 1}})
    saved = deciding_settings(config)
    saved["engine"]["together"] = saved["engine"].pop("vectorised")
    refuse_other_run(tmp_path, config, saved)
    saved["train"]["lr"] = 0.5
    with pytest.raises(CheckpointError, match=r"does not match the run begun here in train.lr;"):
        refuse_other_run(tmp_path, config, saved)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("train.lr", True),
        ("run", False),
        ("run.name", False),
        ("mirror.wandb", False),
        ("data.name", True),
        ("data.path", False),
        ("fedcbdr.mask_block", False),
    ],
)
def test_which_keys_decide(key: str, expected: bool) -> None:
    assert decides(key) is expected
    assert not decides(key, without=[key.split(".")[0]])


def test_identity_is_what_decides_a_result(toy: MakeConfig, tmp_path: Path) -> None:
    base = toy()
    same = [
        toy(run={"out": "elsewhere", "name": "x", "checkpoint_seconds": 5}),
        toy(feat={"logits": "cosine"}),  # of a method that is not used
    ]
    other = [
        toy("replay"),
        toy(seed=8),
        toy(train={"lr": 0.06}),
        toy(scenario={"beta": 0.1}),
        toy(engine={"threads": 2}),
        toy(data={"path": str(tmp_path / "other.npz")}),
    ]
    assert {identity(c) for c in same} == {identity(base)}
    assert len({identity(c) for c in [base, *other]}) == 1 + len(other)


def test_the_place_of_a_known_data_set_does_not_matter() -> None:
    a, b = (make_config({"data": {"name": "cifar10", "path": p}}) for p in ("/a", "/b"))
    assert identity(a) == identity(b)


def test_the_size_of_a_mask_does_not_matter_and_how_exemplars_are_shared_out_does(toy: MakeConfig) -> None:
    base, masked, shared = (toy("fedcbdr", fedcbdr=t) for t in ({}, {"mask_block": 7}, {"mode": "global"}))
    assert identity(base) == identity(masked) != identity(shared)


def test_identity_holds_only_what_differs_from_the_defaults() -> None:
    config = make_config({"method": "fedcbdr", "data": {"name": "cifar10"}, "fedcbdr": {"mode": "class_quota"}})
    told = {"mode": "class_quota", "scale_logits": True}  # and what is done otherwise than in the first version
    assert changed_settings(config) == {"data": {"name": "cifar10"}, "fedcbdr": told}


def test_runs_are_told_apart_by_what_differs_among_those_of_one_name(toy: MakeConfig) -> None:
    def short(**changes: Any) -> Config:
        return toy(train={"lr": 0.1, **changes})

    grid = [short(momentum=m, local_epochs=e) for m in (0.0, 0.9) for e in (1, 2)]
    name = f"{grid[0].method} seed {grid[0].seed}"
    assert tell_apart(grid) == [
        f"{name}, train.local_epochs={e}, train.momentum={m}" for m in (0.0, 0.9) for e in (1, 2)
    ]
    one_by_one = [short(), short(momentum=0.3), short(local_epochs=7), short(rounds=9), short(batch=5), toy(seed=4)]
    assert tell_apart(one_by_one) == [
        name,
        f"{name}, train.momentum=0.3",
        f"{name}, train.local_epochs=7",
        f"{name}, train.rounds=9",
        f"{name}, train.batch=5",
        f"{grid[0].method} seed 4",
    ]


def test_a_name_is_a_file_name_however_much_is_told(tmp_path: Path) -> None:
    config = make_config({"method": "fedcbdr+feat+calibrate"})
    name = folder_name(config, told=flatten(deciding_settings(config)))
    assert name.endswith(f"-seed2023-{identity(config)}")
    assert "-tasks5" in name
    (tmp_path / name).mkdir()
    (tmp_path / f"{name}.{'x' * 40}").touch()  # what is written beside it


def test_runs_on_images_of_ones_own_are_told_apart_by_their_place(toy: MakeConfig) -> None:
    name = "finetune seed 7"
    own = [toy(data={"path": path}) for path in ("a.npz", "b.npz")]
    assert tell_apart(own) == [f"{name}, data.path=a.npz", f"{name}, data.path=b.npz"]
    known = [toy(data={"name": "cifar10", "path": path}) for path in ("a", "b")]
    assert tell_apart(known) == [name, name]


def test_an_alias_is_the_same_run_under_the_name_of_the_method() -> None:
    alias, own = make_config({"method": "FedAvg + fedprox"}), make_config({"method": "finetune+fedprox"})
    assert alias.method == "finetune+fedprox"
    assert folder_name(alias) == folder_name(own)
    assert alias.build_method().name == "finetune+fedprox"
