"""The page in a real browser: it loads from disk, draws its data, switches, sorts, copies, fits and prints."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from browsing import browser_path, chart, overflow
from fake_runs import with_calibration, write_run
from PIL import Image

from fedfeat.report.collect import find_runs
from fedfeat.report.page import write_report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of three methods, as the address of a file."""
    folder = tmp_path_factory.mktemp("comparison")
    for seed in (0, 2):
        write_run(folder, "finetune", seed)
        write_run(folder, "fedcbdr+feat", seed, gain=6.0)
    with_calibration(write_run(folder, "fedcbdr+feat+calibrate", gain=20.0), 53.0)
    write_report(find_runs([folder]), folder / "report.html")
    return (folder / "report.html").as_uri()


def names(page) -> list[str]:
    return page.locator("#comparison tbody th").all_inner_texts()


def choose(page, label: str) -> None:
    page.locator("#prediction label", has_text=label).click()


def test_it_loads_from_disk_without_a_request_or_a_complaint(visit, comparison):
    page = visit.open(comparison)
    for key in page.evaluate("[...document.querySelectorAll('figure[id]')].map(f => f.id.slice(7))"):
        chart(page, key)
    assert visit.complaints == []
    assert [r for r in visit.requests if not r.startswith("data:")] == [comparison]
    assert page.evaluate("fetch('https://example.org/').then(() => 'sent', () => 'refused')") == "refused"


def test_charts_hold_the_numbers_of_the_runs(visit, comparison):
    page = visit.open(comparison)
    lines = {t["name"]: t["y"] for t in chart(page, "accuracy")["data"] if t.get("mode") == "lines+markers"}
    assert lines == {"fedcbdr+feat": [91, 76.5], "finetune": [91, 73.5], "fedcbdr+feat+calibrate": [90, 82.5]}
    assert chart(page, "matrix-fedcbdr-feat")["data"][0]["z"] == [[91, None], [57, 95]]
    bars = {t["name"]: t["y"] for t in chart(page, "forgetting")["data"]}
    assert bars == {"fedcbdr+feat": [34], "finetune": [40], "fedcbdr+feat+calibrate": [20]}
    tail = chart(page, "head-tail-fedcbdr-feat")["data"]
    assert {t["name"]: t["y"] for t in tail}["earlier classes"] == [57]
    assert chart(page, "scenario")["data"][0]["z"][2] == [None, None, pytest.approx(3**0.5), 0]
    assert chart(page, "client-accuracy")["data"][0]["z"][0] == [90, 77.5]  # (60 + 95) / 2
    assert chart(page, "participation")["data"][0]["z"][1] == [1.1, None, 2.1, None]
    energy = chart(page, "energy-0")
    assert [t["y"] for t in energy["data"]] == [[75, 25, 0, 0], [0, 12.5, 37.5, 50]]
    assert energy["layout"]["shapes"][0]["x0"] == 0.3
    assert chart(page, "loss-gsa")["data"][0]["y"] == [None, None, 0.1, 0.1]
    assert {t["name"]: t["y"] for t in chart(page, "speed")["data"]}["finetune"] == [900] * 4
    assert [t["y"] for t in chart(page, "bytes")["data"]][:2] == [[0.5] * 4, [0.25, 0.25, 0.5, 0.5]]


@pytest.mark.processes
def test_a_picture_taken_without_waiting_or_scrolling_shows_the_charts(comparison, tmp_path: Path):
    picture = tmp_path / "page.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--window-size=1280,2600"]
    subprocess.run([browser_path(), *options, f"--screenshot={picture}", comparison], check=True, capture_output=True)
    pixels = np.asarray(Image.open(picture).convert("RGB"))[1000:].reshape(-1, 3)  # below cards and tables
    for colour in ("#0072b2", "#d55e00", "#00875f", "#0d4a86"):  # three methods, and the end of the scale of heat maps
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (np.abs(pixels.astype(int) - wanted).max(axis=1) < 12).sum() > 300, colour


def luminance(colour: str | list[float]) -> float:
    """Relative luminance as the accessibility guidelines define it."""
    values = [int(colour[i : i + 2], 16) for i in (1, 3, 5)] if isinstance(colour, str) else colour
    linear = [v / 12.92 if (v := value / 255) <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for value in values]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_in_cells_can_be_read_and_a_zero_is_not_an_empty_cell(visit, make_run, tmp_path: Path, scheme):
    path = make_run("finetune")
    result = json.loads((path / "result.json").read_text())
    matrix = [[10.0 * (i * 5 + j) % 101 for j in range(i + 1)] for i in range(5)]
    curve = {"accuracy_after_task": [50.0] * 5, "accuracy_after_task_uncorrected": [50.0] * 5}
    matrices = {"accuracy_matrix": matrix, "accuracy_matrix_uncorrected": matrix}
    (path / "result.json").write_text(json.dumps(result | curve | matrices))
    write_report(find_runs([path]), tmp_path / "report.html")
    visit.page.emulate_media(color_scheme=scheme)
    map_, numbers = chart(visit.open((tmp_path / "report.html").as_uri()), "matrix-finetune")["data"]
    stops = np.array([[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for _, stop in map_["colorscale"]])
    values = [v for row in map_["z"] for v in row if v is not None]
    assert numbers["text"] == [f"{v:.0f}" for v in values]
    for value, ink in zip(values, numbers["textfont"]["color"], strict=True):
        cell = [np.interp(value / 25, range(5), channel) for channel in stops.T]
        dark, light = sorted((luminance(cell), luminance(ink)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, value
    page = visit.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--page').trim()")
    assert abs(luminance(map_["colorscale"][0][1]) - luminance(page)) > 0.01


def test_old_and_new_classes_have_colours_of_their_own_and_rounds_no_markers(visit, comparison):
    page = visit.open(comparison)
    methods = {t["line"]["color"] for t in chart(page, "accuracy")["data"] if t.get("mode") == "lines+markers"}
    sides = [t["line"]["color"] for t in chart(page, "head-tail-fedcbdr-feat")["data"]]
    assert len(set(sides)) == 2
    assert methods.isdisjoint(sides)
    assert {t["line"]["color"] for t in chart(page, "energy-0")["data"]} == set(sides)
    assert page.locator("#learning figure[id^=figure-loss]").count() == 2
    for key in ("loss-ce", "speed", "bytes"):
        assert {t["mode"] for t in chart(page, key)["data"]} == {"lines"}


def test_a_sweep_is_drawn_against_each_setting_and_not_ranked(visit, tmp_path: Path):
    for budget in (6, 14):
        for lr in (0.01, 0.1):
            for seed in (0, 2):
                path = write_run(
                    tmp_path, "fedcbdr", seed, lr=lr, gain=budget + 10 * lr, folder=f"{budget}-{lr}-{seed}"
                )
                config = tomllib.loads((path / "config.toml").read_text())
                config["scenario"]["budget"] = budget
                (path / "config.toml").write_text(tomli_w.dumps(config))
    write_report(find_runs([tmp_path]), tmp_path / "report.html")
    page = visit.open((tmp_path / "report.html").as_uri())
    lines = {t["name"]: (t["x"], t["y"], t["error_y"]["array"]) for t in chart(page, "sweep-scenario-budget")["data"]}
    deviation = [pytest.approx(2**0.5, abs=1e-3)] * 2
    assert lines == {"lr=0.01": ([6, 14], [76.55, 80.55], deviation), "lr=0.1": ([6, 14], [77, 81], deviation)}
    other = chart(page, "sweep-train-lr")
    assert other["layout"]["xaxis"]["type"] == "log"
    assert {note["text"]: note["x"] for note in other["layout"]["annotations"]} == {"budget=6": -1, "budget=14": -1}
    assert {t["name"]: t["y"] for t in other["data"]} == {"budget=6": [76.55, 77], "budget=14": [80.55, 81]}
    assert "not a ranking" in page.locator("#headline").inner_text()
    assert page.locator("#comparison .best").count() == 0
    assert overflow(page) == 0
    assert visit.complaints == []


def test_one_switch_changes_charts_tables_and_cards(visit, comparison):
    page = visit.open(comparison)
    found = {}
    for label in ("calibrated", "EGC", "none"):
        choose(page, label)
        accuracy = {t["name"]: t["y"][-1] for t in chart(page, "accuracy")["data"] if t.get("mode") == "lines+markers"}
        found[label] = (
            accuracy["fedcbdr+feat+calibrate"],
            accuracy["fedcbdr+feat"],
            chart(page, "matrix-fedcbdr-feat-calibrate")["data"][0]["z"][1][0],
            chart(page, "confusion")["data"][0]["z"][0][0],
            chart(page, "client-accuracy")["data"][0]["z"][0][1],
            page.locator("#comparison tbody tr", has_text="calibrate").locator("td").nth(1).inner_text(),
        )
    assert found == {
        "calibrated": (82.5, 76.5, 70, 70, 77.5, "82.50"),
        "EGC": (74, 76.5, 53, 53, 74, "74.00"),
        "none": (72.5, 73.5, 50, 50, 67.5, "72.50"),
    }


def test_sorting_by_mouse_and_by_keyboard(visit, comparison):
    page = visit.open(comparison)
    assert names(page) == ["fedcbdr+feat+calibrate", "fedcbdr+feat", "finetune"]
    page.locator("#comparison th button", has_text="forgetting").click()
    assert names(page) == ["finetune", "fedcbdr+feat", "fedcbdr+feat+calibrate"]
    page.keyboard.press("Enter")  # the heading keeps the focus
    assert names(page) == ["fedcbdr+feat+calibrate", "fedcbdr+feat", "finetune"]
    assert page.locator("#comparison th[aria-sort]").get_attribute("aria-sort") == "ascending"
    page.locator("#comparison th button", has_text="method").focus()
    page.keyboard.press("Space")
    assert names(page) == ["fedcbdr+feat", "fedcbdr+feat+calibrate", "finetune"]
    choose(page, "none")
    assert names(page) == ["fedcbdr+feat", "fedcbdr+feat+calibrate", "finetune"]  # the order outlives the switch


@pytest.mark.parametrize("modern", [True, False])
def test_copying_puts_the_table_as_shown_on_the_clipboard(visit, comparison, modern):
    page = visit.open(comparison)
    if not modern:  # as in a browser that has no such right to give
        page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); }")
    page.locator("#comparison th button", has_text="forgetting").click()

    def copied(name: str) -> str:
        page.locator("#comparison .copy button", has_text=name).click()
        page.wait_for_function("n => document.getElementById('said').textContent === 'Copied as ' + n", arg=name)
        return page.evaluate("navigator.clipboard.readText()")

    markdown = [line.strip("| ").split(" | ") for line in copied("Markdown").splitlines()]
    assert markdown[2][:4] == ["finetune", "0, 2", "73.50 ± 1.41", "\u2013"]
    assert {len(line) for line in (markdown[0], *markdown[2:])} == {10}
    lines = copied("CSV").splitlines()
    assert lines[0].startswith("method,seeds,final accuracy (%) mean,final accuracy (%) deviation,correction (points)")
    assert lines[1].startswith('finetune,"0, 2",73.5,1.4142,')
    latex = copied("LaTeX")
    assert latex.startswith("\\begin{tabular}{llrrrrrrrr}\n\\toprule\n")
    assert "finetune & 0, 2 & $73.50 \\pm 1.41$ & -- &" in latex
    assert "final accuracy (\\%)" in latex


def test_a_method_can_be_taken_out_of_the_charts_and_another_run_be_looked_at(visit, comparison):
    page = visit.open(comparison)
    page.locator("#learning .key button", has_text="finetune").click()
    assert "finetune" not in {t["name"] for t in chart(page, "accuracy")["data"] if "name" in t}
    assert len(names(page)) == 3
    page.locator("#learning .key button", has_text="finetune").click()
    page.select_option("#detail select", label="finetune, seed 2")
    assert page.locator("#figure-confusion h3").inner_text() == "Confusion: finetune, seed 2"
    assert chart(page, "client-accuracy")["data"][0]["z"][0] == [90, 68.5]


def test_every_chart_has_words_and_a_table_of_its_numbers(visit, comparison):
    page = visit.open(comparison)
    labels = page.locator(".plot").evaluate_all("plots => plots.map(p => [p.getAttribute('role'), p.ariaLabel])")
    assert all(role == "group" and len(label) > 40 for role, label in labels)
    assert not any("undefined" in label or "NaN" in label for _, label in labels)
    details = page.locator("#figure-accuracy details")
    details.locator("summary").click()
    assert details.locator("tbody tr").first.inner_text().split("\t") == ["fedcbdr+feat+calibrate", "90.0", "82.5"]


def test_the_keyboard_reaches_the_skip_link_the_switch_and_the_tables(visit, comparison):
    page = visit.open(comparison)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["y"] >= 0  # and it can be seen
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "prediction"
    page.keyboard.press("ArrowLeft")
    assert page.locator("#prediction input:checked").get_attribute("value") == "variant"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.closest('[id]')?.id"))
    assert {"detail", "theme", "contents", "comparison", "learning"} <= reached
    ring = page.evaluate("(document.activeElement, getComputedStyle(document.activeElement).outlineStyle)")
    assert ring == "solid"


@pytest.mark.parametrize("width", [390, 768])  # the layouts of narrow and of wide windows; others are wider
def test_it_fits_phones_and_tablets(visit, comparison, width):
    visit.page.set_viewport_size({"width": width, "height": 844})
    page = visit.open(comparison)
    for key in ("accuracy", "confusion", "energy-0", "bytes"):
        chart(page, key)
    assert overflow(page) == 0
    assert page.locator("#comparison .scroll").bounding_box()["width"] <= width
    choose(page, "none")
    assert overflow(page) == 0


def test_it_follows_the_system_into_the_dark_and_the_button_overrules_it(visit, comparison):
    visit.page.emulate_media(color_scheme="dark")
    page = visit.open(comparison)

    def shade() -> tuple[str, str]:
        body = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return body, chart(page, "accuracy")["layout"]["font"]["color"]

    assert shade() == ("rgb(20, 24, 29)", "#e6e9ed")
    page.click("#theme")
    assert shade() == ("rgb(255, 255, 255)", "#1b1f24")
    page.emulate_media(color_scheme="light")
    page.click("#theme")
    assert shade() == ("rgb(20, 24, 29)", "#e6e9ed")


def test_paper_is_light_and_holds_every_chart(visit, comparison, tmp_path: Path):
    visit.page.emulate_media(color_scheme="dark")
    page = visit.open(comparison)
    page.evaluate(
        """addEventListener('afterprint', () => {}, {once: true});
           addEventListener('beforeprint', () => { window.seen = {
             theme: document.documentElement.dataset.theme,
             drawn: [...document.querySelectorAll('.plot')].every(p => p.data?.length),
             widest: Math.max(...[...document.querySelectorAll('.plot')].map(p => p.layout.width)) }; })"""
    )
    page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    assert page.evaluate("window.seen") == {"theme": "light", "drawn": True, "widest": 680}
    assert (tmp_path / "report.pdf").stat().st_size > 30_000
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_one_run_without_a_correction_is_a_page_of_its_own(visit, make_run, tmp_path: Path):
    write_report(find_runs([make_run("finetune")]), tmp_path / "report.html")
    page = visit.open((tmp_path / "report.html").as_uri())
    assert page.locator("#headline p").count() == 3
    assert page.locator("#headline p").last.inner_text() == page.locator("#correction .note").inner_text()
    assert page.locator("#comparison h2").inner_text() == "Result"
    assert page.locator("#comparison thead th", has_text="correction").count() == 0
    assert page.locator("#prediction").is_hidden()
    assert page.locator("#detail").is_hidden()
    assert page.locator(".answers .card").count() == 4
    charts = ("matrix-finetune", "forgetting", "confusion")  # side by side, from edge to edge
    left, *_, right = (page.locator(f"#figure-{key}").bounding_box() for key in charts)
    body = page.locator("#forgetting .body").bounding_box()
    assert (left["x"], right["x"] + right["width"]) == (body["x"], pytest.approx(body["x"] + body["width"], abs=1))
    assert left["y"] == right["y"]
    assert visit.complaints == []


def test_hostile_names_are_text(visit, make_run, tmp_path: Path):
    evil = '<img src=x onerror="window.hit=1"></script><script>window.hit=1</script>&amp;'
    path = make_run(evil, dataset=evil, gain=6.0, names=(evil, "<b>", "]]>", "{{data}}"), folder="x")
    (path / "env.json").write_text(json.dumps({evil: evil}))
    write_report(find_runs([path, make_run()]), tmp_path / "report.html")
    page = visit.open((tmp_path / "report.html").as_uri())
    chart(page, "confusion")
    chart(page, "scenario")
    assert page.evaluate("window.hit") is None
    assert page.locator("img").count() == 0
    assert evil in page.locator("#title").inner_text()
    assert page.locator("#setting tbody th", has_text="onerror").count() >= 1
    assert visit.complaints == []


def test_broken_and_unfinished_folders_give_a_page_that_says_so(visit, make_run, tmp_path: Path):
    broken, unfinished, bare = make_run(seed=1), make_run("fedcbdr+feat", gain=6.0), make_run("finetune")
    (broken / "scenario.json").write_text("{")
    (broken / "events.jsonl").write_text("not json\n")
    (unfinished / "result.json").unlink()
    for name in ("env.json", "scenario.json", "events.jsonl", "result.json"):
        (bare / name).unlink()
    write_report(find_runs([broken, unfinished, bare]), tmp_path / "report.html")
    page = visit.open((tmp_path / "report.html").as_uri())
    missing = page.locator("#missing").inner_text()
    assert f"{broken}: scenario.json cannot be read" in missing
    assert f"{broken}: events.jsonl has 1 unreadable line" in missing
    assert f"{unfinished}: unfinished: 2 of 2 tasks done" in missing
    assert f"{bare}: events.jsonl is not there" in missing
    assert "things are missing" in page.locator("#warning").inner_text()
    for label in page.locator("#detail option").all_inner_texts():
        page.select_option("#detail select", label=label)
    assert visit.complaints == []


def test_without_the_chart_library_numbers_are_open_tables(visit, make_run, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    from fedfeat.report import page as page_module

    page_module._chart_library.cache_clear()
    write_report(find_runs([make_run("fedcbdr+feat", gain=6.0)]), tmp_path / "report.html")
    page = visit.open((tmp_path / "report.html").as_uri())
    assert "fedfeat[plots]" in page.locator("#missing").inner_text()
    assert page.locator("#figure-accuracy tbody td").all_inner_texts() == ["90.0", "75.5"]
    assert not page.locator("#figure-accuracy .plot").is_visible()
    assert visit.complaints == []
