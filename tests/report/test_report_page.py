"""The page is one file, loads nothing, escapes everything and says what is missing."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedfeat.report.collect import find_runs, summary_rows
from fedfeat.report.page import report_html, write_report
from fedfeat.report.words import headline

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def runs(make_run):
    paths = [make_run("finetune", s) for s in (0, 1)] + [make_run("fedcbdr+feat", s, gain=6.0) for s in (0, 1)]
    return find_runs(paths)


def test_every_section_is_there_once_with_unique_ids(runs):
    page = Page(report_html(runs))
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    sections = (
        "comparison",
        "curves",
        "matrices",
        "head-tail",
        "rounds",
        "communication",
        "scenario",
        "setting",
        "missing",
    )
    assert [i for i in ids if i in sections] == list(sections)
    assert "Nothing: every run folder is complete." in page.text


def test_nothing_is_loaded_from_anywhere(runs):
    text = report_html(runs)
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import", text)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    for name, value in page.attributes:
        if name in ("src", "href"):
            assert value is not None
            assert value.startswith(("#", "data:"))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_numbers_on_the_page_are_those_of_the_result(runs):
    text = Page(report_html(runs)).text
    for number in ("76.00 ± 0.71", "73.00 ± 0.71", "34.00 ± 0.00", "\u221234.00 ± 0.00", "3.500"):
        assert number in text


def test_hostile_names_are_text(make_run):
    evil = "<script>alert('x')</script><img src=x onerror=y>\"&"
    path = make_run(evil, dataset=evil, names=(evil, evil, "--><b>", "]]>"), folder="x")
    environment = {evil: evil}
    (path / "env.json").write_text(json.dumps(environment))
    result = json.loads((path / "result.json").read_text())
    result["traffic"] = {f"up/{evil}": 5}
    (path / "result.json").write_text(json.dumps(result))
    page = Page(report_html(find_runs([path])))
    assert not {"script", "img", "b"} & set(page.tags)
    assert not {"onerror", "src"} & {name for name, _ in page.attributes}
    assert evil in page.text


def test_headline_tells_what_came_out_and_what_the_correction_changed(runs):
    said = headline(summary_rows(runs))
    assert said == [
        "fedcbdr+feat and finetune were run on digits, 4 classes in 2 tasks, spread over 3 clients, "
        "with seeds 0 and 1.",
        "After the last task fedcbdr+feat recognises 76.0 ± 0.7 % of the test images of all classes, "
        "the highest; finetune follows 3.0 points on average (3.0 to 3.0 over 2 seeds) behind.",
        "The correction changes the final accuracy of fedcbdr+feat by +3.0 points on average "
        "(+3.0 to +3.0 over 2 seeds).",
    ]


def test_other_data_sets_are_not_ranked(make_run):
    said = headline(summary_rows(find_runs([make_run(), make_run("finetune", dataset="cifar10")])))
    assert any("not a ranking" in sentence for sentence in said)
    assert not any("highest" in sentence for sentence in said)


def test_an_unfinished_run_still_gives_a_page_that_says_so(make_run, tmp_path: Path):
    path = make_run("fedcbdr+feat", gain=6.0)
    (path / "result.json").unlink()
    (path / "scenario.json").write_text("{")
    lines = (path / "events.jsonl").read_text().splitlines(keepends=True)
    (path / "events.jsonl").write_text("".join(lines[:3]))
    write_report(find_runs([path]), tmp_path / "report.html")
    text = Page((tmp_path / "report.html").read_text()).text
    assert "No run has finished yet" in text
    assert "unfinished: 1 tasks done" in text
    assert "scenario.json cannot be read" in text


def test_a_folder_with_nothing_but_a_configuration_gives_a_page(make_run):
    path = make_run()
    for name in ("env.json", "scenario.json", "events.jsonl", "result.json"):
        (path / name).unlink()
    assert "4 things are missing" in Page(report_html(find_runs([path]))).text


def test_diverged_losses_are_no_obstacle(make_run):
    path = make_run()
    text = (path / "events.jsonl").read_text().replace('"ce": 1.0', '"ce": NaN').replace('"ce": 0.5', '"ce": Infinity')
    (path / "events.jsonl").write_text(text)
    assert "<svg" in report_html(find_runs([path]))


def test_without_matplotlib_the_page_has_tables_and_says_why(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = Page(report_html(runs))
    assert "svg" not in page.tags
    assert "table" in page.tags
    assert "fedfeat[plots]" in page.text


def test_notes_and_other_predictions_of_a_run_are_shown(make_run):
    folder = make_run("fedcbdr+feat", 0)
    path = folder / "result.json"
    result = json.loads(path.read_text())
    result["notes"] = ["text_encoder=ngrams-512 <b>"]
    tasks = len(result["accuracy_after_task"])
    result["accuracy_of_variants"] = {"before calibration": [50.0] * (tasks - 1) + [43.21]}
    path.write_text(json.dumps(result))
    page = Page(report_html(find_runs([folder])))
    assert "text_encoder=ngrams-512 <b>" in page.text
    assert "before calibration" in page.text
    assert "43.21" in page.text
