"""The page is one file, allows nothing but itself, escapes everything and stays small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest
import tomli_w
from plotly.offline import get_plotlyjs

from fedfeat.core.errors import FedfeatError
from fedfeat.report.collect import find_runs, group_runs
from fedfeat.report.headline import headline
from fedfeat.report.page import ASSETS, SCRIPTS, STYLES, data_text, document, report_html, write_report
from fedfeat.report.page_data import page_data
from report_page import Page, unpacked

MEBIBYTE = 2**20


@pytest.fixture
def runs(make_run):
    paths = [make_run("finetune", s) for s in (0, 1)] + [make_run("fedcbdr+feat", s, gain=6.0) for s in (0, 1)]
    return find_runs(paths)


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else(runs):
    page = Page(report_html(runs))
    scripts = [get_plotlyjs(), page.scripts[2]]
    digests = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts]
    assert sorted(page.policy["script-src"]) == sorted(digests)
    assert page.policy["default-src"] == ["'none'"]
    assert page.policy["img-src"] == ["data:", "blob:"]
    assert "connect-src" not in page.policy
    live = Page(document(page_data(runs), live=True))
    assert live.policy["connect-src"] == ["'self'"]


def test_the_chart_library_is_in_the_page_whole(runs):
    page = Page(report_html(runs))
    library = unpacked(page.scripts[1])
    assert library == get_plotlyjs()
    sizes = {a["id"]: a["data-size"] for _, a in page.elements if "data-size" in a}
    assert sizes["library"] == str(len(library.encode()))


def test_nothing_is_loaded_from_anywhere(runs):
    page = Page(report_html(runs))
    assert not {"iframe", "object", "embed", "base", "form"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:,"))
    own = "".join((ASSETS / name).read_text() for name in (*SCRIPTS, *STYLES, "page.html"))
    assert not re.search(r"https?:|@import|url\(|innerHTML|document\.write|\beval\b", own)


def test_every_asset_is_used():
    assert {p.name for p in ASSETS.iterdir()} == {*SCRIPTS, *STYLES, "page.html"}


def test_hostile_names_stay_data(make_run):
    evil = "</script><script>alert('x')</script><img src=x onerror=y>{{data}}\u2028\"&"
    path = make_run(evil, dataset=evil, names=(evil, evil, "--><b>", "<!--"), folder="x")
    page = Page(report_html(find_runs([path])))
    assert len(page.scripts) == 3
    assert "img" not in {tag for tag, _ in page.elements}
    assert page.data["groups"][0]["label"] == evil
    assert page.data["scenarios"][0]["tasks"][1]["classes"] == ["--><b>", "<!--"]
    assert "<" not in data_text({"x": evil})


def test_a_report_of_one_large_run_stays_under_two_megabytes_and_thirty_under_three(make_run, tmp_path: Path):
    paths = [make_run(f"method-{m}", s) for m in range(10) for s in range(3)]
    for path in paths:
        enlarge(path, classes=100, clients=50, rounds=500)
    write_report(find_runs(paths), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3 * MEBIBYTE
    write_report(find_runs(paths[:1]), tmp_path / "one.html")
    assert (tmp_path / "one.html").stat().st_size < 2_000_000


def enlarge(path: Path, classes: int, clients: int, rounds: int) -> None:
    """Give a run as many classes, clients and rounds as a large experiment has."""
    result = json.loads((path / "result.json").read_text())
    table = [[(i * j) % 7 if i != j else 80 for j in range(classes)] for i in range(classes)]
    (path / "result.json").write_text(json.dumps(result | {"confusion": table, "confusion_uncorrected": table}))
    scenario = json.loads((path / "scenario.json").read_text())
    scenario["num_clients"] = clients
    for task in scenario["tasks"]:
        half = classes // len(scenario["tasks"])
        task["classes"] = [f"class {task['task']}-{c}" for c in range(half)]
        task["clients"] = [{"client": k, "counts": [(k * c) % 90 for c in range(half)]} for k in range(clients)]
    (path / "scenario.json").write_text(json.dumps(scenario))
    lines = (path / "events.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["client_losses"] = {str(k): 0.123456789 * (k + 1) for k in range(clients)}
    made = [json.dumps(first | {"round": r, "losses": {"ce": 1 / r, "gsa": 2 / r}}) for r in range(1, rounds + 1)]
    (path / "events.jsonl").write_text("\n".join([*made, *(line for line in lines if '"task", ' in line)]) + "\n")


def test_a_report_needs_a_run():
    with pytest.raises(FedfeatError, match="at least one run"):
        report_html([])


def test_the_same_runs_give_the_same_bytes(runs):
    assert report_html(runs) == report_html(runs)


def test_headline_tells_what_came_out_and_what_the_correction_changed(runs):
    assert headline(group_runs(runs)) == [
        "fedcbdr+feat and finetune were run on digits, 4 classes in 2 tasks, spread over 3 clients, "
        "with seeds 0 and 1.",
        "After the last task fedcbdr+feat recognises 76.0 ± 0.7 % of the test images of all classes, "
        "the highest; finetune follows 3.0 points on average (3.0 to 3.0 over 2 seeds) behind.",
        "The correction changes the final accuracy of fedcbdr+feat by +3.0 points on average "
        "(+3.0 to +3.0 over 2 seeds).",
    ]


def test_a_correction_that_changes_nothing_in_the_end_is_said_to(make_run):
    path = make_run("fedcbdr+feat")
    result = json.loads((path / "result.json").read_text())
    result["accuracy_matrix"][1] = [result["accuracy_matrix"][1][0] + 1, result["accuracy_matrix"][1][1] - 1]
    (path / "result.json").write_text(json.dumps(result))
    said = headline(group_runs(find_runs([path])))
    assert said[-1] == "The correction does not change the final accuracy of fedcbdr+feat."


def test_many_corrections_are_one_sentence(make_run):
    paths = [make_run(f"replay+feat-{gain}", gain=gain) for gain in (-4.0, 2.0, 6.0, 8.0)]
    said = headline(group_runs(find_runs(paths)))
    assert said[-1] == "The correction changes the final accuracy of 4 methods, by \u22122.0 to +4.0 points."


def test_beta_budget_and_rounds_are_told_as_far_as_all_runs_share_them(make_run):
    paths = [make_run(), make_run("finetune")]
    scenario = {"partition": "dirichlet", "beta": 0.5, "budget": 14, "budget_scope": "global_per_task"}
    for path, rounds in zip(paths, (10, 10), strict=True):
        config = {**tomllib.loads((path / "config.toml").read_text()), "train": {"rounds": rounds}}
        (path / "config.toml").write_text(tomli_w.dumps(config | {"scenario": scenario}))
    said = "The partition is Dirichlet with beta 0.5, the clients together keep at most 14 exemplars per task"
    assert headline(group_runs(find_runs(paths)))[1] == f"{said} and a task has 10 rounds."
    (paths[0] / "config.toml").write_text(tomli_w.dumps(config | {"scenario": scenario | {"budget": 6}}))
    sentences = headline(group_runs(find_runs(paths)))
    assert sentences[1] == "The partition is Dirichlet with beta 0.5 and a task has 10 rounds."


def test_other_data_sets_are_not_ranked(make_run):
    runs = find_runs([make_run(), make_run("finetune", dataset="cifar10")])
    assert not page_data(runs)["ranked"]
    said = headline(group_runs(runs))
    assert any("not a ranking" in sentence for sentence in said)
    assert not any("highest" in sentence for sentence in said)


def test_an_unfinished_run_is_said_to_be_begun(make_run):
    path = make_run("fedcbdr+feat", gain=6.0)
    (path / "result.json").unlink()
    data = page_data(find_runs([path]))
    assert data["headline"][0].startswith("fedcbdr+feat was begun on digits")
    assert "No run has finished yet" in data["headline"][1]
    assert data["groups"][0]["measures"] == {}
    assert data["groups"][0]["predictions"]["own"]["accuracy"]["mean"] == [90.0, 75.5]


def test_notes_of_a_run_are_shown(make_run):
    path = make_run()
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(result | {"notes": ["text_encoder=ngrams-512 <b>"]}))
    assert page_data(find_runs([path]))["setting"]["notes"] == ["fedcbdr: text_encoder=ngrams-512 <b>"]
