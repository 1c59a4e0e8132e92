"""Training that diverges stops with one sentence; files hold JSON whatever the numbers are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfeat.algorithm.engine import NOT_FINITE, Lost
from fedfeat.core.errors import TrainingDiverged
from fedfeat.federation import loop
from fedfeat.federation.average import Average, fault_of
from fedfeat.federation.exchange import ExchangeOutcome, TooFewClients, check_quorum
from fedfeat.report.run import read_run
from fedfeat.runs.experiment import resume, start
from fedfeat.runs.folder import RunFolder
from toy import toy_config, untimed, write_toy

NAN = float("nan")
FINE = torch.ones(3)


def strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def config_for(folder: Path, **train: Any) -> Any:
    return toy_config("finetune", data={"path": str(write_toy(folder / "toy.npz"))}, train=train)


def test_a_run_that_diverges_stops_and_says_where_and_what_to_try(tmp_path: Path) -> None:
    with pytest.raises(
        TrainingDiverged, match=r"task 1, round 1: the loss term 'ce' of client 0 is nan.*train\.lr"
    ) as told:
        start(config_for(tmp_path, lr=1e20), tmp_path / "run")
    assert str(told.value).endswith("resume the run, which begins anew, since no checkpoint was written yet")
    assert RunFolder.open(tmp_path / "run").result() is None


def test_the_checkpoint_before_is_kept_and_a_resumed_run_ends_like_one_that_never_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path)
    whole = start(config, tmp_path / "whole")
    average = loop.average

    def broken(*arguments: Any) -> Average:
        result = average(*arguments)
        calls.append(1)
        if len(calls) == 4:
            assert result.weights is not None
            result.weights[-1] = NAN
        return result

    calls: list[int] = []
    monkeypatch.setattr(loop, "average", broken)
    sentence = "task 2, round 2: the average of the clients' weights.* which continues in task 2 after round 1$"
    with pytest.raises(TrainingDiverged, match=sentence):
        start(config, tmp_path / "run")
    assert len([e for e in RunFolder.open(tmp_path / "run").events() if e["event"] == "round"]) == 3
    assert untimed(resume(tmp_path / "run")) == untimed(whole)
    assert len(calls) == 7, "the three rounds before it were not run again"


def test_a_setting_lets_it_go_on_and_every_file_is_json(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = config_for(tmp_path, lr=1e20)
    with pytest.raises(TrainingDiverged):
        start(config, run)
    text = (run / "config.toml").read_text()
    assert "stop_on_divergence = true" in text
    (run / "config.toml").write_text(text.replace("stop_on_divergence = true", "stop_on_divergence = false"))
    resume(run)
    lines = [strictly(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [e["losses"]["ce"] for e in lines if e["event"] == "round"] == [None] * 6
    for path in run.rglob("*.json"):
        strictly(path.read_text())
    assert "diverged: losses are not finite from task 1, round 1 on" in read_run(run).missing


def test_events_from_before_with_bare_nan_are_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    start(config_for(tmp_path), run)
    path = run / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2]["losses"]["ce"] = NAN
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "NaN" in path.read_text()
    assert read_run(run).missing == ("diverged: losses are not finite from task 1, round 2 on",)


def test_the_term_is_named_before_the_sum_of_all_terms() -> None:
    reply = {"samples": 4, "loss.first_epoch": NAN, "loss.gsa": float("inf"), "loss.ce": 1.0}
    assert fault_of(Average(FINE, {2: reply}, 4)) == "the loss term 'gsa' of client 2 is inf"
    assert fault_of(Average(FINE, {2: {"samples": 4, "loss.ce": 1.0}}, 4)) is None
    assert fault_of(Average(None, {}, 0)) is None


def test_rejected_replies_of_a_federation_count_as_divergence_only_if_none_is_left(tmp_path: Path) -> None:
    federation = object.__new__(loop.Federation)
    federation.config, federation.folder = toy_config("finetune"), None
    federation.saved, federation.remote = "", True
    rejected = ExchangeOutcome("train", 2, lost={0: Lost("failed", f"weights: {NOT_FINITE}")})
    away = ExchangeOutcome("train", 2, lost={0: Lost("missing", "no reply")})
    federation._refuse_divergence(Average(FINE, {1: {"samples": 4, "loss.ce": 1.0}}, 4), rejected, 0, 0)
    federation._refuse_divergence(Average(None, {}, 0), away, 0, 0)
    with pytest.raises(TrainingDiverged, match="no reply is left"):
        federation._refuse_divergence(Average(None, {}, 0), rejected, 0, 0)


def test_too_few_replies_after_divergence_do_not_send_for_clients_that_are_there() -> None:
    rejected = ExchangeOutcome("train", 1, lost={0: Lost("failed", f"loss.ce: {NOT_FINITE}")})
    with pytest.raises(TooFewClients, match=r"lower train\.lr"):
        check_quorum(rejected, 0.5)
    with pytest.raises(TooFewClients, match="bring clients back and resume"):
        check_quorum(ExchangeOutcome("train", 1, lost={0: Lost("missing", "no reply")}), 0.5)
