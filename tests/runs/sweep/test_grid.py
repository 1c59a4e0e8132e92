"""A sweep file becomes experiments: every combination once, mistakes named before anything runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.core.errors import ConfigError
from fedfeat.runs.identity import identity
from fedfeat.runs.sweep.grid import load_sweep

ROOT = Path(__file__).parents[3]


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def test_every_combination_once_methods_first_seeds_last(tmp_path: Path) -> None:
    text = """
    [sweep]
    base = "digits"
    methods = ["finetune", "replay"]
    seeds = [0, 1]
    settings = { "train.lr" = [0.01, 0.1], "scenario.beta" = [0.5] }
    [train]
    rounds = 3
    """
    configs = load_sweep(write(tmp_path, text))
    assert [(c.method, c.train.lr, c.seed) for c in configs] == [
        (method, lr, seed) for method in ("finetune", "replay") for lr in (0.01, 0.1) for seed in (0, 1)
    ]
    assert {(c.train.rounds, c.train.batch, c.scenario.budget) for c in configs} == {(3, 32, 14)}


@given(st.lists(st.integers(0, 99), unique=True, min_size=1, max_size=4), st.sampled_from([[1], [1, 2], [3, 1, 2]]))
def test_as_many_runs_as_the_product_and_all_different(seeds: list[int], epochs: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = f'[sweep]\nseeds = {seeds}\nmethods = ["finetune", "fedcbdr"]\n'
        text += f'settings = {{"train.local_epochs" = {epochs}}}'
        configs = load_sweep(write(Path(folder), text))
    assert len(configs) == len({identity(c) for c in configs}) == 2 * len(seeds) * len(epochs)


def test_the_base_may_be_a_file_beside_and_overrides_come_last(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("[train]\nrounds = 7\nlr = 0.5\n")
    path = write(tmp_path, '[sweep]\nbase = "base.toml"\nseeds = [4]\n[train]\nlr = 0.25\n')
    configs = load_sweep(path, ["train.batch=9"])
    assert [(c.seed, c.train.rounds, c.train.lr, c.train.batch) for c in configs] == [(4, 7, 0.25, 9)]


def test_dotted_keys_need_no_quotes(tmp_path: Path) -> None:
    path = write(tmp_path, '[sweep.settings]\ntrain.lr = [0.01, 0.02]\n"scenario.beta" = [0.5]\n')
    assert [(c.train.lr, c.scenario.beta) for c in load_sweep(path)] == [(0.01, 0.5), (0.02, 0.5)]


def test_without_lists_it_is_one_run(tmp_path: Path) -> None:
    assert len(load_sweep(write(tmp_path, "[sweep]\n"))) == 1


def test_all_is_every_method(tmp_path: Path) -> None:
    methods = {c.method for c in load_sweep(ROOT / "configs" / "digits-sweep.toml")}
    assert methods == {"fedcbdr", "fedcbdr+feat"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed = 1", r"has no table \[sweep\]"),
        ("[sweep", "not a valid TOML file"),
        ("[sweep]\nmethod = ['finetune']", r"unknown key 'sweep.method'; did you mean 'methods'\?"),
        ("[sweep]\nseeds = ['a']", "sweep.seeds.0: input should be a valid integer"),
        ("[sweep]\nmethods = ['fly']", "at method = fly.*no method or add-on is called 'fly'|called 'fly'"),
        ("[sweep]\nsettings = {'train.lrr' = [1]}", "at train.lrr = 1: unknown key 'train.lrr'; did you mean 'lr'"),
        ("[sweep]\nsettings = {'train.lr' = []}", "'train.lr' has no values"),
        (
            "[sweep.settings]\nmethod = ['refed']",
            r"'method' does not belong here; write methods = \[\.\.\.\] in \[sweep\]",
        ),
        ("[sweep.settings]\nseed = [1]", r"'seed' does not belong here; write seeds = \[\.\.\.\] in \[sweep\]"),
        ("[sweep.settings]\ntrain.lr = 1", "sweep.settings.train.lr: input should be a list, got 1"),
        ("[sweep]\nbase = 'digit'", r"is no preset and no file; did you mean 'digits'\?"),
    ],
)
def test_mistakes_are_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        load_sweep(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: no such file"):
        load_sweep(tmp_path / "nowhere.toml")
