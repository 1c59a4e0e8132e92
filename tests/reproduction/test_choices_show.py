"""Effects of choices as text and as a file: exact cells, full precision, nothing lost, damage refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from paper_records import MakeRecord

from fedfeat.core.errors import FedfeatError
from fedfeat_reproduction.choices import METHOD, ChoiceRuns, choose_alternatives
from fedfeat_reproduction.effects import (
    QUICK_FILE,
    Accuracies,
    Effect,
    Pair,
    measured,
    read_measured,
)
from fedfeat_reproduction.page import quick_choices_section, render_page
from fedfeat_reproduction.records import read_records
from fedfeat_reproduction.render import change_text, effects_csv, effects_latex, effects_markdown, usual_text
from fedfeat_reproduction.results import SeedMean, setting_table

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "results" / QUICK_FILE


def pair(seed: int, plain: float, own: float, calibrated: float) -> Pair:
    """Return a pair whose usual run has 50, 60 and 70."""
    usual = Accuracies(plain=50, own=60, calibrated=70)
    return Pair(seed=seed, usual=usual, varied=Accuracies(plain=50 + plain, own=60 + own, calibrated=70 + calibrated))


EFFECTS = [
    Effect(
        choice="momentum",
        changes={"train.momentum": 0.0},
        method=METHOD,
        pairs=[pair(2023, -4.0, -1.0, 2.0), pair(2024, -6.0, 3.0, 2.0)],
    ),
    Effect(choice="logits", changes={"feat.logits": "raw"}, method=METHOD, pairs=[]),
]


def test_an_effect_as_text() -> None:
    assert change_text(None) == ""
    assert change_text(SeedMean((1.0,))) == "+1.00"
    assert change_text(SeedMean((-4.0, -6.0))) == "-5.00 ± 1.41"
    assert change_text(SeedMean((0.0, 0.0))) == "none"
    assert change_text(SeedMean((-1.0, 1.0))) == "(+0.00 ± 1.41)"
    assert change_text(SeedMean((-1.0, 3.0))) == "(+1.00 ± 2.83)"
    assert usual_text(EFFECTS) == (
        "usual run: plain 50.00 ± 0.0, own 60.00 ± 0.0, calibrated 70.00 ± 0.0 (seeds 2023, 2024)"
    )
    assert usual_text(EFFECTS[1:]) == "no pair of runs yet"


def test_markdown_shows_what_was_not_run_as_empty() -> None:
    lines = effects_markdown(EFFECTS).splitlines()
    assert lines[0] == "| choice | instead | method | seeds | plain | own | calibrated |"
    assert lines[2] == (
        f"| `momentum` | `train.momentum = 0.0` | `{METHOD}` | 2 | -5.00 ± 1.41 | (+1.00 ± 2.83) | +2.00 ± 0.00 |"
    )
    assert lines[3] == f"| `logits` | `feat.logits = raw` | `{METHOD}` |  |  |  |  |"


def test_csv_has_full_precision() -> None:
    rows = list(csv.DictReader(effects_csv(EFFECTS, "digits, 2 rounds").splitlines()))
    assert rows[0]["instead"] == "train.momentum = 0.0"
    assert (rows[0]["seeds"], rows[1]["seeds"]) == ("2", "0")
    assert rows[1]["where"] == "digits, 2 rounds"
    assert float(rows[0]["plain_effect_std"]) == 2**0.5
    assert (rows[0]["own_usual"], rows[0]["own_effect"]) == ("60.0", "1.0")
    assert rows[1]["plain_usual"] == rows[1]["calibrated_effect"] == ""


def test_latex_is_escaped_and_signs_are_mathematics() -> None:
    text = effects_latex(EFFECTS, "a_b")
    assert r"\caption{a\_b}" in text
    assert r"& 2 & $-5.00 \pm 1.41$ & $(+1.00 \pm 2.83)$ & $+2.00 \pm 0.00$ \\" in text
    assert text.count("{") == text.count("}")


def test_the_file_holds_every_effect_there_is_and_is_read_back(make_record: MakeRecord, tmp_path: Path) -> None:
    records = [
        make_record(METHOD, 75.0),
        make_record(METHOD, 74.0, overrides=("train.momentum=0",)),
        make_record(METHOD, 73.0, overrides=("feat.logits=raw",)),
        make_record(METHOD, 73.0, overrides=("feat.logits=raw", "train.momentum=0")),
    ]
    kept = measured(ChoiceRuns(), records)
    assert [effect.choice for effect in kept.effects] == ["momentum", "logits"]
    assert kept.environments == [{"commit": "abc", "gpu": "a GPU", "torch": "2"}]
    path = tmp_path / QUICK_FILE
    path.parent.mkdir()
    path.write_text(kept.to_json())
    assert read_measured(path) == kept
    assert read_records(tmp_path) == []  # it is no record of a run
    assert read_measured(tmp_path / "nowhere.json") is None
    path.write_text(path.read_text().replace("74.0", "174.0"))
    with pytest.raises(FedfeatError, match=r"not a record of choices .*less than or equal to 100"):
        read_measured(path)


def test_the_file_of_this_project_is_whole() -> None:
    kept = read_measured(COMMITTED)
    assert kept is not None
    assert kept.to_json() == COMMITTED.read_text()
    quick = ChoiceRuns(quick=True)
    assert kept.setting == json.loads(json.dumps(setting_table(quick.usual(METHOD))))
    expected = [(a.choice.name, a.changes, a.choice.method) for a in choose_alternatives() if not quick.objection(a)]
    assert [(e.choice, e.changes, e.method) for e in kept.effects] == expected
    assert all([p.seed for p in effect.pairs] == [2023, 2024, 2025] for effect in kept.effects)
    for method in {effect.method for effect in kept.effects}:
        usual = [[p.usual for p in effect.pairs] for effect in kept.effects if effect.method == method]
        assert all(runs == usual[0] for runs in usual)  # one usual run per seed, whatever it is compared with


def test_the_page_says_what_was_measured_in_small_and_what_stands_out() -> None:
    committed = read_measured(COMMITTED)
    assert committed is not None
    small = committed.model_copy(update={"effects": EFFECTS[:1]})
    section = quick_choices_section(small)
    assert "These are not the paper's images, network or number of rounds" in section
    assert "- plain, 1 of 1: `train.momentum = 0.0` -5.00\n" in section
    assert "- own, 0 of 1\n" in section
    told = " ".join(section.split())
    assert "`data.augment = none` (images of digits are not augmented)" in told
    assert "`train.schedule = constant` (no pair of runs yet)" in told
    assert section in render_page([], small)
    assert "The same choices" not in render_page([])
