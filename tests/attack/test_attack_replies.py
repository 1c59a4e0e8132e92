"""A client with a key that sends what it should not: every such reply is refused by name, and the run goes on."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from attack.arena import Arena, arena
from attack.hostile_replies import EVERY_ROUND, LATER_TASKS, MASSES, SPOILERS
from attack_table import Recorder

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SAMPLE = (
    "weights: NaN",
    "weights: 3e+38 added",
    "weights: one number fewer",
    "samples: 2^53",
    "an entry with a forged log line as its name",
    "its form: 2^62 numbers",
    "prior_head: 1e308",
    "prior_tail: NaN",
    "num_tail: -1",
)
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f\u202e]|\\\\u001b|\\\\n2026")


def planned(names: list[str], rounds: int, first_task: int = 1) -> dict[str, str]:
    """Give every round of training one of the ways to do harm."""
    return {f"{first_task + k // rounds}.{k % rounds + 1}.train": name for k, name in enumerate(names)}


def refused(result: dict[str, Any], victim: str) -> dict[str, str]:
    """Return why a client's replies were not used, by TASK.ROUND.OP."""
    return {
        f"{s['task']}.{s['round']}.{s['op']}": s["failed"][victim]
        for s in result["rounds_with_fewer_clients"]
        if victim in s["failed"]
    }


def check_refusals(field: Arena, result: dict[str, Any], plan: dict[str, str], victim: int) -> None:
    """Every spoilt reply was refused with a sentence that names what was wrong, and nothing else was."""
    reasons = refused(result, str(victim))
    assert reasons.keys() == plan.keys(), (plan.keys() - reasons.keys(), reasons.keys() - plan.keys())
    for place, reason in reasons.items():
        assert SPOILERS[plan[place]].named[:20].split("\n")[0] in reason, (plan[place], reason)
        assert len(reason) < 400
    assert field.equals_simulation(result)
    assert len(field.audit("reply failed")) == len(plan)
    for name in ("server.log", "events.jsonl", "result.json", "audit.jsonl"):
        text = (field.run / name).read_text()
        assert not CONTROL.search(text), f"{name} holds what a client wrote"
        assert not re.search(r"^\S+ \S+ WARNING all is well", text, re.MULTILINE)


def test_a_sample_of_hostile_replies(tmp_path: Path) -> None:
    # The first round of a task is honest: without it the hostile client has no exemplars, and no priors to spoil.
    plan = planned(list(SAMPLE[:6]), 6) | planned(list(SAMPLE[6:]), 6, 2) | {"1.6.leverage": "masses: -100"}
    with arena(tmp_path, "fedcbdr+feat", 2, **quota(tasks=2, rounds=6)) as field:
        field.hostile_client(1, plan)
        field.client(0)
        check_refusals(field, field.finish(field.server()), plan, victim=1)


def quota(tasks: int, rounds: int) -> dict[str, Any]:
    return {
        "scenario": {"tasks": tasks, "budget": 24},
        "train": {"rounds": rounds},
        "fedcbdr": {"mode": "class_quota"},
        "federation": {"quorum": 0.3, "deadline": 60.0},
    }


@pytest.mark.attack
def test_a_hundred_hostile_replies(tmp_path: Path, record_attack: Recorder) -> None:
    rounds = -(-(len(EVERY_ROUND) + len(LATER_TASKS)) // 3)
    first, second = list(EVERY_ROUND)[:rounds], list(EVERY_ROUND)[rounds:]
    plan = planned(first, rounds) | planned([*LATER_TASKS, *second], rounds, 2)
    plan |= dict(zip((f"1.{rounds}.leverage", f"2.{rounds}.leverage"), MASSES, strict=True))
    assert len(plan) >= 100
    with arena(tmp_path, "fedcbdr+feat", 3, **quota(tasks=3, rounds=rounds)) as field:
        field.hostile_client(2, plan)
        for k in (0, 1):
            field.client(k)
        result = field.finish(field.server())
        check_refusals(field, result, plan, victim=2)
    reasons = refused(result, "2")
    shown = {name.split(":")[0]: place for place, name in reversed(plan.items())}
    counts = Counter(name.split(":")[0] for name in plan.values())
    for kind, place in shown.items():
        of = [name.partition(": ")[2] for name in plan.values() if name.startswith(kind + ":")]
        told = f"{kind} ({', '.join(of[:6])}{', ...' if len(of) > 6 else ''})" if of else kind
        said = reasons[place] if len(reasons[place]) <= 90 else f"{reasons[place][:20]} ..."
        outcome = f"refused, the round goes on as without this client: “{said}”"
        record_attack("client with a key", f"reply with {told}", outcome, counts[kind])
