"""What the page is given to draw: exact numbers, for every position of the switch, and never too much of them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from fake_runs import with_calibration
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.config.renamed import BEFORE
from fedfeat.federation.metrics import forgetting
from fedfeat.report import page_data as page_data_module
from fedfeat.report.collect import find_runs, read_run
from fedfeat.report.group_data import client_accuracies, client_class_counts
from fedfeat.report.page import data_text
from fedfeat.report.page_data import page_data
from fedfeat.report.predictions import choices, predictions
from fedfeat.report.series import percents, ragged_mean, significant, thinned


@pytest.fixture
def data(make_run):
    paths = [make_run("finetune", s) for s in (0, 2)] + [make_run("fedcbdr+feat", s, gain=6.0) for s in (0, 2)]
    return page_data(find_runs(paths))


def test_curves_of_a_method_are_means_over_seeds(data):
    feat, finetune = data["groups"]
    assert (feat["label"], feat["seeds"], feat["unfinished"]) == ("fedcbdr+feat", [0, 2], 0)
    assert feat["predictions"]["own"]["accuracy"] == {"mean": [91.0, 76.5], "std": [1.41, 1.41]}
    assert feat["predictions"]["none"]["accuracy"]["mean"] == [91.0, 73.5]
    assert feat["predictions"]["own"]["matrix"] == [[91.0, None], [57.0, 95.0]]
    assert feat["predictions"]["own"]["forgetting"] == {"mean": [34.0], "std": None}
    assert feat["predictions"]["none"]["forgetting"]["mean"] == [40.0]
    assert feat["predictions"]["own"]["tail"] == {"mean": [None, 57.0], "std": [None, 1.41]}
    assert feat["predictions"]["none"]["tail"]["mean"] == [None, 51.0]
    assert list(finetune["predictions"]) == ["none"]


def test_measures_follow_the_switch_and_the_gain_is_seed_by_seed(data):
    feat, finetune = data["groups"]
    assert feat["measures"]["own"]["final_accuracy"] == [76.5, pytest.approx(2**0.5, abs=1e-4)]
    assert feat["measures"]["none"]["final_accuracy"][0] == 73.5
    assert feat["measures"]["own"]["gain"] == [3.0, 0.0]
    assert feat["measures"]["none"]["forgetting"][0] == 40.0
    assert feat["measures"]["own"]["backward_transfer"][0] == -34.0
    assert "gain" not in finetune["measures"]["none"]
    assert feat["costs"]["megabytes_down"] == [3.5, 0.0]
    assert feat["traffic"] == {"down / train": 3.5, "up / train": 2.000001}


def test_rounds_of_all_tasks_are_one_curve(data):
    rounds = data["groups"][0]["rounds"]
    assert (rounds["count"], rounds["task_starts"]) == (4, [0, 2])
    assert rounds["losses"] == {"ce": [1.0, 0.5, 1.0, 0.5], "gsa": [None, None, 0.1, 0.1]}
    assert rounds["up"] == [0.5] * 4
    assert rounds["down"] == [0.25, 0.25, 0.5, 0.5]


def test_the_switch_has_as_many_positions_as_there_are_predictions(make_run):
    plain, feat = read_run(make_run("finetune")), read_run(make_run("fedcbdr+feat", gain=6.0))
    calibrated = read_run(with_calibration(make_run("fedcbdr+feat+calibrate", gain=6.0), 53.0))
    means = read_run(make_run("herding+ncm", gain=6.0))
    names = [[c["label"] for c in choices(runs)] for runs in ([plain], [plain, feat], [feat, means], [calibrated])]
    assert names == [["none"], ["none", "EGC"], ["none", "method's own"], ["none", "EGC", "calibrated"]]
    assert [c["key"] for c in choices([plain, feat, calibrated])] == ["none", "variant", "own"]


def test_a_calibrated_run_tells_of_three_predictions(make_run):
    path = with_calibration(make_run("fedcbdr+feat+calibrate", gain=6.0), 53.0)
    for finished in (True, False):
        if not finished:
            (path / "result.json").unlink()
        found = predictions(read_run(path))
        assert [found[k].matrix[1][0] for k in ("none", "variant", "own")] == [50.0, 53.0, 56.0]
        assert [found[k].head_tail[1][1] for k in ("none", "variant", "own")] == [50.0, 53.0, 56.0]
        assert [bool(found[k].confusion) for k in ("none", "variant", "own")] == [finished] * 3
    (group,) = page_data([read_run(path)])["groups"]
    assert group["predictions"]["variant"]["accuracy"]["mean"] == [90.0, 74.0]


def test_clients_are_judged_by_their_own_mix(make_run):
    run = read_run(make_run("fedcbdr+feat", gain=6.0))
    (detail,) = page_data([run])["details"]
    # Clients hold classes 0 and 2 alike; client 2 joins in the second task and holds class 2 alone.
    assert detail["clients"]["own"] == [[90.0, 70.5], [90.0, 70.5], [None, 95.0]]  # (46 + 95) / 2
    assert detail["clients"]["none"] == [[90.0, 67.5], [90.0, 67.5], [None, 95.0]]
    assert detail["client_losses"]["took_part"] == [4, 2]
    assert detail["client_losses"]["losses"] == [[1.0, 1.0, 2.0, 2.0], [1.1, None, 2.1, None]]
    assert client_class_counts(run.scenario, 2)[:, 2].tolist() == [1, 2, 3]
    assert client_accuracies(run.scenario, [[90.0, 90.0], []]).size == 0


def test_details_of_a_run(make_run):
    run = read_run(make_run("fedcbdr+feat", 3, gain=6.0))
    data = page_data([run])
    (detail,) = data["details"]
    assert detail["confusion"]["own"][0] == [56, 0, 0, 44]
    assert detail["confusion"]["none"][0] == [50, 0, 0, 50]
    assert detail["energies"] == [{"task": 2, **run.tasks[1].energies.model_dump()}]
    assert data["scenarios"][detail["scenario"]]["tasks"][1]["held"] == [[0, 1, 0], [1, 2, 0], [2, 3, 0]]


def test_equal_scenarios_are_stored_once(data):
    assert [d["scenario"] for d in data["details"]] == [0, 1, 0, 1]
    assert [s["seed"] for s in data["scenarios"]] == [0, 2]


def test_pictures_come_newest_first_and_only_as_many_as_fit(make_run, monkeypatch):
    path = make_run("target")
    (path / "pictures").mkdir()
    for task in (1, 2, 10):
        (path / "pictures" / f"task-{task}.png").write_bytes(b"x" * 30)
    monkeypatch.setattr("fedfeat.report.group_data.MOST_PICTURE_BYTES", 70)
    (detail,) = page_data([read_run(path)])["details"]
    assert [(p["task"], p["source"] is not None) for p in detail["pictures"]] == [
        ("10", True),
        ("2", True),
        ("1", False),
    ]


def test_too_many_details_are_left_out_and_that_is_said(make_run, monkeypatch):
    paths = [make_run(m, s) for m in ("finetune", "fedcbdr") for s in (0, 1)]
    whole = page_data(find_runs(paths))
    size = max(len(json.dumps(d)) for d in whole["details"])
    monkeypatch.setattr(page_data_module, "MOST_DETAIL_BYTES", int(2.5 * size))
    cut = page_data(find_runs(paths))
    assert [(d["group"], d["seed"]) for d in cut["details"]] == [(0, 0), (1, 0)]  # one seed of each method
    assert any(s.startswith("2 runs are not shown in detail") for s in cut["missing"])


def test_what_a_sweep_varied_is_told_group_by_group(make_run):
    runs = find_runs([make_run(method, lr=lr) for method in ("finetune", "fedcbdr") for lr in (0.1, 0.2)])
    data = page_data(runs)
    assert list(data["varied"]) == ["train.lr"]
    told = {(group["method"], value) for group, value in zip(data["groups"], data["varied"]["train.lr"], strict=True)}
    assert told == {(method, lr) for method in ("finetune", "fedcbdr") for lr in (0.1, 0.2)}
    assert page_data(runs[::3])["varied"] == {}  # one run of each method: nothing was varied
    pair = find_runs([make_run(lr=0.3), make_run(lr=0.4, dataset="cifar10")])
    assert page_data(pair)["varied"] == {}  # which of two settings made the difference, nobody knows


def test_settings_are_parted_into_shared_and_not(make_run):
    data = page_data(find_runs([make_run("finetune", lr=0.1), make_run("fedcbdr", lr=0.2)]))["setting"]
    told = {key: value for key, value in data["shared"].items() if key not in BEFORE}  # these are filled in
    assert told == {"data.name": "digits", "scenario.tasks": "2"}
    assert data["apart"] == {"train.lr": ["0.2", "0.1"]}  # equally good, so in the order of names
    assert data["versions"] == {"fedfeat": "0.1.0", "gpu": "none"}


def test_diverged_losses_are_gaps(make_run):
    path = make_run()
    text = (path / "events.jsonl").read_text().replace('"ce": 1.0', '"ce": NaN').replace('"ce": 0.5', '"ce": Infinity')
    (path / "events.jsonl").write_text(text)
    data = page_data(find_runs([path]))
    assert data["groups"][0]["rounds"]["losses"]["ce"] == [None] * 4
    json.dumps(data, allow_nan=False)


BROKEN = [b"", b"{", b"[1, 2]", b"\xff\xfe\x00", b'{"tasks": 3}', b"null", b'{"event": "round", "task": "x"}']


@pytest.mark.parametrize("name", ["config.toml", "env.json", "scenario.json", "events.jsonl", "result.json"])
def test_no_broken_file_keeps_the_page_from_being_made(make_run, name):
    path = make_run("fedcbdr+feat", gain=6.0)
    for content in (*BROKEN, None):
        if content is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(content)
        data = page_data([read_run(path)])
        assert json.loads(data_text(data)) == data
        assert data["missing"] or name == "env.json"  # any table will do there


@given(st.lists(st.floats(-1e6, 1e6), max_size=700), st.integers(1, 300))
def test_thinning_keeps_the_mean_of_blocks_and_never_too_many(values, most):
    found = thinned(values, most)
    assert len(found) == min(len(values), most)
    if len(values) <= most:
        assert found.tolist() == values
    elif len(values) % most == 0:
        assert found.mean() == pytest.approx(np.mean(values), abs=1e-6)


def test_small_numbers():
    assert percents([1.005, None, math.nan, math.inf, 99.999]) == [1.0, None, None, None, 100.0]
    assert significant([123456.0, 0.000123449, math.nan, -math.inf]) == [123500.0, 0.0001234, None, None]
    assert ragged_mean([[1.0, 3.0], [3.0], []]).tolist() == [2.0, 3.0]
    assert forgetting([[90.0], [50.0, 95.0]]) == 40.0
