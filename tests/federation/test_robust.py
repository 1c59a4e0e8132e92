"""Robust rules: what they make of replies, and that one of five attackers does not decide any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedfeat.algorithm.settings import TrainSettings
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.federation.robust import joined, selected, trimmed_mean
from fedfeat.methods import compose
from fedfeat.runs.experiment import resume, start
from toy import toy_config, untimed, write_toy

RULES = ["median", "trimmed_mean", "krum", "multi_krum", "norm_bounding"]
SENT = torch.tensor([1.0, 1.0])


def settings_for(rule: str, **changes: Any) -> TrainSettings:
    return TrainSettings(robust=rule, **changes)  # type: ignore[arg-type]


def mean_of(replies: dict[int, Payload], name: str = "weights") -> torch.Tensor:
    return torch.stack([torch.as_tensor(reply[name]) for reply in replies.values() if name in reply]).mean(dim=0)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("none", [(0.1 + 0.2 + 0.3 + 0.4 + 1000) / 5, 0.0]),
        ("median", [0.3, 0.0]),
        ("trimmed_mean", [0.3, 0.0]),
        ("krum", [0.2, 0.0]),
        ("multi_krum", [0.25, 0.0]),
        ("norm_bounding", [(0.1 + 0.2 + 3 * 0.3) / 5, 0.0]),
    ],
)
def test_the_mean_of_updates_is_what_the_rule_says(rule: str, expected: list[float]) -> None:
    requests: dict[int, Payload] = {k: {"weights": SENT} for k in range(6)}
    moved = [0.1, 0.2, 0.3, 0.4, 1000.0]
    replies: dict[int, Payload] = {
        k: {"weights": SENT + torch.tensor([step, 0.0]), "samples": 3} for k, step in enumerate(moved)
    }
    replies[5] = {"samples": 0}
    made = joined("train", requests, replies, {}, settings_for(rule))
    torch.testing.assert_close(mean_of(made) - SENT, torch.tensor(expected), rtol=1e-4, atol=1e-6)
    assert made[5] == {"samples": 0}
    assert torch.equal(tensor_of(replies[4], "weights"), SENT + torch.tensor([1000.0, 0.0])), "replies stay as they are"


def test_a_fixed_bound_and_an_even_number() -> None:
    requests: dict[int, Payload] = {k: {"weights": SENT} for k in range(2)}
    replies: dict[int, Payload] = {k: {"weights": SENT + (k + 1)} for k in range(2)}
    bound = joined("train", requests, replies, {}, settings_for("norm_bounding", norm_bound=0.5))
    norms = [float((tensor_of(r, "weights") - SENT).norm()) for r in bound.values()]
    assert norms == pytest.approx([0.5, 0.5])
    assert (mean_of(joined("train", requests, replies, {}, settings_for("median"))) - SENT).tolist() == [1.5, 1.5]
    assert trimmed_mean(torch.tensor([[1.0], [2.0], [9.0]]), 1).tolist() == [2.0]


def test_krum_by_hand() -> None:
    """Scores with one attacker of five, the sums of the two smallest squared distances: 10, 5, 5, 10, far more."""
    updates = torch.tensor([[0.0], [1.0], [3.0], [4.0], [100.0]])
    assert selected(updates, "krum", 1) == [1], "the first of two that are equal"
    assert selected(updates, "multi_krum", 1) == [0, 1, 2, 3]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", ["fedcbdr+feat", "fedewc", "herding+ncm", "fedcbdr+fedfsa"])
def test_no_number_is_decided_by_one_of_five(rule: str, method: str) -> None:
    sends = compose(method, {}).sends
    op, name, honest, bad = {
        "fedcbdr+feat": ("train", "prior_head", 0.2, 1.0),
        "fedewc": ("fisher", "fisher", torch.full((4,), 1e-4), torch.full((4,), 1e8)),
        "herding+ncm": ("class_sums", "class_sums", torch.eye(3), -1e8 * torch.eye(3)),
        "fedcbdr+fedfsa": ("train", "fedfsa.means", torch.ones(2, 3), torch.full((2, 3), -1e8)),
    }[method]
    replies: dict[int, Payload] = {k: {"samples": 3, name: bad if k == 4 else honest} for k in range(5)}
    if name == "fedfsa.means":
        for k, reply in replies.items():
            reply["fedfsa.classes"] = torch.tensor([k % 2, 2], dtype=torch.int32)
    if op == "train":
        for reply in replies.values():
            reply["weights"] = SENT + (100.0 if reply is replies[4] else 0.01)
    made = joined(op, {k: {"weights": SENT} for k in range(5)}, replies, sends, settings_for(rule))
    for reply in made.values():
        value = torch.as_tensor(reply[name])
        limit = torch.as_tensor(honest).norm()
        assert value.norm() <= limit * 1.001
        assert type(reply[name]) is type(honest)


def test_a_class_that_one_client_holds_is_not_lost() -> None:
    sends = compose("herding+ncm", {}).sends
    sums = [torch.diag(torch.tensor(row)) for row in ([1.0, 0, 0], [1.0, 0, 0], [0, 0, 5.0])]
    counts = [(s.sum(dim=1) > 0).long() for s in sums]
    replies: dict[int, Payload] = {k: {"class_sums": sums[k], "class_counts": counts[k]} for k in range(3)}
    made = joined("class_sums", {}, replies, sends, settings_for("median"))
    total = sum(tensor_of(reply, "class_sums") for reply in made.values())
    assert torch.equal(total, torch.diag(torch.tensor([2.0, 0, 5.0])))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_run_learns_and_resumes_with_the_same_bytes(tmp_path: Path, rule: str) -> None:
    """Clients send control variates beside their weights."""
    data = {"path": str(write_toy(tmp_path / "toy.npz"))}
    config = toy_config(
        "fedcbdr+scaffold", data=data, train={"robust": rule, "rounds": 5, "lr": 0.1}, scenario={"tasks": 2}
    )
    whole = start(config, tmp_path / "whole")
    assert whole["accuracy_matrix"][0][0] > 50, "of three classes"

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "round" and (event["task"], event["round"]) == (2, 1):
            raise InterruptedError

    with pytest.raises(InterruptedError):
        start(config, tmp_path / "cut", (stop,))
    assert untimed(resume(tmp_path / "cut")) == untimed(whole)
