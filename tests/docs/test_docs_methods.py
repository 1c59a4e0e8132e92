"""Every method has a page, written from its docstring, and the bytes on these pages are what runs measure."""

from __future__ import annotations

import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from documents import ROOT
from pydantic import Field

from fedfeat.algorithm.registry import Part
from fedfeat.algorithm.sent import SYMBOLS, Sent
from fedfeat.core.errors import FedfeatError
from fedfeat.core.settings import Settings, setting
from fedfeat.methods import PARTS, all_methods, parts_of
from reference_pages import built_in_parts, method_index, method_page
from reference_pages.__main__ import write_documents
from reference_pages.communication import entry_rows, measure, measured_methods, summary_row
from reference_pages.configuration import leaf_fields
from reference_pages.sections import REQUIRED, sections_of

PAGES = ROOT / "docs" / "methods"
BUILT_IN = built_in_parts()
HINT = "run: python -m reference_pages"

WHOLE = """Some method.

In a few words.

Objective:
    L = CE

Deviations:
    none
"""


def part_with(docstring: str, monkeypatch: pytest.MonkeyPatch, name: str = "some", own: str = "") -> Part:
    module = types.ModuleType("fedfeat_docs_some", docstring)
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def build() -> None:
        raise AssertionError("pages are made without building anything that fails")

    build.__module__, build.__doc__ = module.__name__, own
    return replace(PARTS["joint"], name=name, build=build)


def test_pages_and_their_index_are_up_to_date_and_complete() -> None:
    for part in BUILT_IN:
        assert (PAGES / f"{part.name}.md").read_text() == method_page(part), HINT
    assert (PAGES / "index.md").read_text() == method_index(), HINT
    assert {p.stem for p in PAGES.glob("*.md")} == {"index", *(p.name for p in BUILT_IN)}


def test_every_part_has_all_sections() -> None:
    for part in BUILT_IN:
        sections = sections_of(part)
        assert all(sections[name] for name in ("Idea", *REQUIRED)), part.name
        for sent in part.sends:
            assert set(re.findall(r"[A-Za-z_]\w*", sent.formula)) <= set(SYMBOLS), sent.formula
            assert sent.meaning or sent.remark, sent


@pytest.mark.parametrize("heading", REQUIRED)
def test_a_missing_section_is_refused(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sections_of(part_with(WHOLE, monkeypatch))
    without = re.sub(rf"^{heading}:\n(?:    .*\n)+", "", WHOLE, flags=re.MULTILINE)
    with pytest.raises(FedfeatError, match=f"no section {heading} for 'some'"):
        sections_of(part_with(without, monkeypatch))
    sections_of(part_with(without, monkeypatch, own=f"In short.\n\n{heading}:\n    L = mine\n"))


def test_sections_of_the_function_win(monkeypatch: pytest.MonkeyPatch) -> None:
    own = part_with(WHOLE, monkeypatch, own="In short.\n\n    Mine.\n\n    Objective:\n        L = mine\n    ")
    assert sections_of(own) == {"Idea": "Mine.", "Objective": "L = mine", "Deviations": "none"}
    short = part_with(WHOLE, monkeypatch, own="In short.")
    assert sections_of(short)["Idea"] == "Some method.\n\nIn a few words."


def test_what_a_docstring_cannot_mean_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedfeatError, match="'Remarks'"):
        sections_of(part_with(WHOLE + "\nRemarks:\n    none\n", monkeypatch))


class Inner(Settings):
    size: int = setting(3, "how large", ge=1)
    rounds: int = setting(5, "how often", origin="paper")
    default_origin = "a choice: cheap"


class Outer(Settings):
    mu: float = setting(0.5, "how much")
    made: Inner = Field(default_factory=Inner, description="inside")


def test_a_default_says_where_it_comes_from_or_its_table_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {key: origin for key, _, origin in leaf_fields(Outer)}
    assert found == {"mu": "", "made.size": "a choice: cheap", "made.rounds": "paper"}
    part = replace(part_with(WHOLE, monkeypatch), settings=Outer)
    with pytest.raises(FedfeatError, match=r"some\.mu: nobody says where its default comes from"):
        method_page(part)
    page = method_page(replace(part, reads=("made.*",)))
    assert "| `made.rounds` | `5` | how often | paper |" in page
    assert "`mu`" not in page


def test_formulas_follow_from_shapes() -> None:
    vectors = Sent("down/keep/x.*", shape=("C", "d"), at_most=True)
    assert (vectors.formula, vectors.bytes({"C": 10, "d": 2.5})) == ("4 * C * d", 100)
    counts = Sent("up/train/right", shape=("G", 2), item=8)
    assert (counts.formula, counts.bytes({"G": 3, "R": 5})) == ("16 * G * R", 240)
    pool = Sent("down/train/shared.pool", shape=("pool",), item=1)
    assert (pool.formula, pool.bytes({"pool": 7})) == ("pool", 7)
    assert Sent("up/train/one").formula == "4 * R"


def test_writing_needs_the_projects_root_and_removes_old_pages(tmp_path: Path) -> None:
    with pytest.raises(FedfeatError, match="root"):
        write_documents(tmp_path / "docs")
    (tmp_path / "docs" / "methods").mkdir(parents=True)
    (tmp_path / "docs" / "methods" / "gone.md").write_text("# gone\n")
    write_documents(tmp_path / "docs")
    assert not (tmp_path / "docs" / "methods" / "gone.md").exists()
    assert (tmp_path / "docs" / "configuration.md").exists()


def test_every_method_was_measured() -> None:
    text = (ROOT / "docs" / "communication.md").read_text()
    methods = measured_methods()
    assert set(all_methods()) <= set(methods)
    assert {part.name for method in methods for part in parts_of(method)} == {part.name for part in BUILT_IN}
    assert re.findall(r"^\| `([\w+]+)` \| [\d,]+ \|", text, re.MULTILINE) == methods


@pytest.mark.docs
@pytest.mark.parametrize("method", ["analytic", "replay", "fedewc", "herding+ncm", "refed+feat", "fedlwf"])
def test_measured_bytes_are_those_of_the_page(method: str) -> None:
    lines = (ROOT / "docs" / "communication.md").read_text().splitlines()
    measurement = measure(method)
    expected = [summary_row(measurement), *entry_rows(measurement)]
    assert [line for line in lines if line.startswith(f"| `{method}` |")] == expected, f"{HINT} --measure"


@pytest.mark.docs
def test_a_wrong_formula_does_not_get_onto_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    part = PARTS["replay"]
    monkeypatch.setitem(PARTS, "replay", replace(part, sends=(Sent("down/keep_random/quota", often="R"),)))
    with pytest.raises(FedfeatError, match=r"4.00 bytes per client and task, and 4 \* R is 8.00"):
        measure("replay")
    monkeypatch.setitem(PARTS, "replay", replace(part, sends=(Sent("down/keep_all/quota"),)))
    with pytest.raises(FedfeatError, match="sends down/keep_random/quota, which none of its parts declares"):
        measure("replay")
