"""Every base with every add-on, and add-ons with each other: what makes sense runs, the rest is refused in a sentence.

Names come from the registry, so a new method takes part by being registered; only contradictions are listed here.
"""

from __future__ import annotations

import json
import math
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfeat.core.errors import ConfigError
from fedfeat.federation.progress import Progress
from fedfeat.methods import PARTS
from fedfeat.methods.clip2fl.teacher_cache import TeacherCache, write_cache
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from toy import toy_config, toy_dataset

BASES = [p.name for p in PARTS.values() if p.kind == "base"]
ADDONS = [p.name for p in PARTS.values() if p.kind == "add-on"]
ALWAYS = {"weights", "samples"}  # what every client sends, besides its losses

# What an add-on needs in front of it, unless a part that contains it is there already.
NEEDS = {"gsa": "etf", "egc": "etf"}
CONTAINS = {"feat": {"etf", "gsa", "egc"}}
NEEDS_EXEMPLARS = {"egc", "feat", "ncm", "calibrate"}
BUILT = {name: PARTS[name].build(PARTS[name].settings()) for name in BASES}
# Bases that an add-on has nothing to do on: their softmax leaves old classes out, or they have a teacher already.
NOTHING_TO_DO = {
    "balanced": {name for name, method in BUILT.items() if method.loss.new_classes_only},
    "distil": {name for name, method in BUILT.items() if method.distils},
}
TRAINED = [name for name in BASES if BUILT[name].trains]
NO_EXEMPLARS = {name for name, method in BUILT.items() if method.replay is None}

# Two parts that want the same place contradict each other. Whoever predicts relies on the classifier that is there,
# so a classifier comes first; ``calibrate`` tunes the plain prediction or EGC's, and comes last.
BRINGS_A_CLASSIFIER = {"etf", "feat", "fedfsa"}
PREDICTS = {"egc", "feat", "ncm", "clip2fl", "calibrate"}
CANNOT_BE_TUNED = {"ncm", "clip2fl"}
TRAINS_A_LINEAR_CLASSIFIER = {"clip2fl"}
CORRECTS_IMBALANCE = {"egc", "feat"}


def contradiction(first: str, second: str) -> str | None:
    """Say why ``first+second`` makes no sense, or return None."""
    if second in CONTAINS.get(first, ()) or first in CONTAINS.get(second, ()):
        return "the one contains the other"
    if "balanced" in (first, second) and {first, second} & CORRECTS_IMBALANCE:
        return "there is no imbalance left to correct"
    if second in BRINGS_A_CLASSIFIER and first in BRINGS_A_CLASSIFIER | PREDICTS:
        return "a classifier is there already, or is used already"
    if second in TRAINS_A_LINEAR_CLASSIFIER and first in BRINGS_A_CLASSIFIER:
        return "there is no linear classifier to train"
    if second == "calibrate":
        return "this prediction cannot be tuned" if first in CANNOT_BE_TUNED else None
    if second in PREDICTS and first in PREDICTS:
        return "there are two predictions"
    return None


def with_needs(*addons: str) -> list[str]:
    """Put what add-ons need in front of them."""
    there = {part for a in addons for part in (a, *CONTAINS.get(a, ()))}
    needed = dict.fromkeys(NEEDS[a] for a in addons if a in NEEDS)
    return [*(n for n in needed if n not in there), *addons]


def fits(*addons: str) -> bool:
    return all(contradiction(a, b) is None for a, b in combinations(with_needs(*addons), 2))


def spec(base: str, *addons: str) -> str:
    return "+".join([base, *with_needs(*addons)])


SINGLE = [(b, a) for b in TRAINED for a in ADDONS]
IDLE = [(b, a) for b, a in SINGLE if b in NOTHING_TO_DO.get(a, ())]
ALLOWED = [spec(b, a) for b, a in SINGLE if not (b in NO_EXEMPLARS and a in NEEDS_EXEMPLARS) and (b, a) not in IDLE]
PAIRS = [(a, b) for a, b in permutations(ADDONS, 2) if NEEDS.get(a) != b]
FITTING = [pair for pair in PAIRS if fits(*pair)]
CONTRADICTING = [pytest.param(*pair, id="+".join(pair)) for pair in PAIRS if not fits(*pair)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings that make costly parts cheap, and a teacher for those that need one."""
    path, dataset = tmp_path_factory.mktemp("teacher") / "toy.safetensors", toy_dataset()
    text = torch.randn(dataset.num_classes, 16, generator=torch.Generator().manual_seed(0))
    write_cache(path, TeacherCache(text[dataset.train_labels], text, dataset.class_names, None, "toy"))
    return {
        "scenario": {"tasks": 2},
        "train": {"rounds": 1, "local_epochs": 1, "batch": 24},
        "clip2fl": {"teacher": {"backend": "cache", "path": str(path)}, "repeats": 1},
        "fedfsa": {"server_epochs": 1},
    }


def run_two_tasks(method: str, folder: Path, tables: dict[str, Any]) -> None:
    """Run, and check what holds for any method: finite numbers, every loss logged, nothing undeclared sent."""
    config = toy_config(method, **tables)
    experiment, progress = Experiment(config, toy_dataset()), Progress()
    result = experiment.run(RunFolder.create(folder, config, {}), progress, ())
    assert len(result["accuracy_after_task"]) == 2
    assert torch.isfinite(progress.weights).all()
    rounds = [e for e in map(json.loads, (folder / "events.jsonl").read_text().splitlines()) if e["event"] == "round"]
    for task, event in enumerate(rounds):
        assert {t.name for t in experiment.method.active_terms(task)} <= set(event["losses"])
        assert all(math.isfinite(value) for value in event["losses"].values())
    sent = {key.split("/", 2)[2] for key in result["traffic"] if key.startswith("up/")}
    assert {key for key in sent if not key.startswith("loss.")} <= ALWAYS | set(experiment.method.sends)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:calibrate")
@pytest.mark.parametrize("method", ALLOWED)
def test_a_base_with_an_addon_runs(method: str, tmp_path: Path, tables: dict[str, Any]) -> None:
    run_two_tasks(method, tmp_path / "run", tables)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:calibrate")
@pytest.mark.parametrize("pair", [p for p in combinations(ADDONS, 2) if {p, p[::-1]} & set(FITTING)], ids="+".join)
def test_two_addons_that_fit_run_together(pair: tuple[str, str], tmp_path: Path, tables: dict[str, Any]) -> None:
    ordered = pair if pair in FITTING else pair[::-1]
    run_two_tasks(spec("fedcbdr", *ordered), tmp_path / "run", tables)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:calibrate")
def test_everything_that_fits_together_runs_together(tmp_path: Path, tables: dict[str, Any]) -> None:
    chosen: list[str] = ["feat"]
    for name in ADDONS:
        if name != "calibrate" and fits(*chosen, name):
            chosen.append(name)
    assert {"moon", "fedrcl", "fedprox", "scaffold"} <= set(chosen)
    run_two_tasks(spec("fedcbdr", *chosen, "calibrate"), tmp_path / "run", tables)


def refusal(method: str, tables: dict[str, Any]) -> str:
    """Return the sentence with which a method is refused before anything runs."""
    with pytest.raises(ConfigError) as caught:
        toy_config(method, **tables)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert ";" in sentence, "it should say what to do"
    return sentence


@pytest.mark.parametrize(("first", "second"), CONTRADICTING)
def test_two_addons_that_contradict_each_other_are_refused(first: str, second: str, tables: dict[str, Any]) -> None:
    sentence = refusal(spec("fedcbdr", first, second), tables)
    named = {part for a in (first, second) for part in (a, *CONTAINS.get(a, ()))}
    assert any(name in sentence for name in named), f"{sentence!r} should name one of the two"


@pytest.mark.parametrize(("base", "addon"), [(b, a) for b, a in SINGLE if b in NO_EXEMPLARS and a in NEEDS_EXEMPLARS])
def test_an_addon_that_works_on_exemplars_needs_some(base: str, addon: str, tables: dict[str, Any]) -> None:
    assert "exemplars" in refusal(spec(base, addon), tables)


@pytest.mark.parametrize(("base", "addon"), IDLE)
def test_an_addon_that_has_nothing_to_do_on_a_base_is_refused(base: str, addon: str, tables: dict[str, Any]) -> None:
    assert repr(base) in refusal(spec(base, addon), tables)


@pytest.mark.parametrize("addon", ADDONS)
@pytest.mark.parametrize("base", sorted(set(BASES) - set(TRAINED)))
def test_an_addon_is_refused_where_nothing_is_trained(base: str, addon: str, tables: dict[str, Any]) -> None:
    sentence = refusal(spec(base, addon), tables)
    assert any(name in sentence for name in with_needs(addon)), sentence


@pytest.mark.parametrize("addon", NEEDS)
def test_an_addon_without_what_it_needs_is_refused(addon: str, tables: dict[str, Any]) -> None:
    assert f"{addon} needs" in refusal(f"fedcbdr+{addon}", tables)
    assert f"{addon} needs" in refusal(f"fedcbdr+{addon}+{NEEDS[addon]}", tables)


# The head is that of the base, or of an add-on that brings its own.
@pytest.mark.parametrize("method", [*BASES, *(spec("fedcbdr", addon) for addon in ADDONS)])
def test_growth_keeps_every_number_of_the_old_model(method: str, tables: dict[str, Any]) -> None:
    engine = Experiment(toy_config(method, **tables), toy_dataset()).engine
    engine.begin_task(0)
    vector = torch.randn(len(engine.model.vector), generator=torch.Generator().manual_seed(1))
    engine.model.load(vector)
    before = {name: value.clone() for name, value in engine.model.named_values().items()}
    engine.begin_task(1, vector)
    growing = {f"head.{name}" for name in engine.network.head.growing}
    after = engine.model.named_values()
    assert after.keys() == before.keys()
    for name, old in before.items():
        assert torch.equal(after[name][: len(old)] if name in growing else after[name], old), name
        assert (len(after[name]) > len(old)) == (name in growing)


def test_the_tables_above_name_parts_that_exist() -> None:
    tables = (NEEDS, NEEDS.values(), CONTAINS, NEEDS_EXEMPLARS, BRINGS_A_CLASSIFIER, PREDICTS, CANNOT_BE_TUNED)
    assert {name for table in tables for name in table} <= set(ADDONS)


def test_what_fits_composes_in_either_order_and_every_loss_has_a_name_of_its_own(tables: dict[str, Any]) -> None:
    """Two losses that share a name are one line in the log, and nobody sees which of them moved."""
    for method in (*ALLOWED, *(spec("fedcbdr", *pair) for pair in FITTING)):
        parts = toy_config(method, **tables).build_method()
        names = [part.name for part in (parts.loss, *parts.terms, *parts.penalties)]
        assert len(set(names)) == len(names), method
