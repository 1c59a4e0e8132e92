"""Strangers at the gateway of ``fedfeat server`` while a run goes on: nobody gets in, and the run does not notice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from attack.arena import HERE, arena
from attack.hostile_connections import METHODS, OVERSIZE, PATHS, TWO_READINGS
from attack_table import Recorder
from engines.flower.federations import processes_that_mention

pytestmark = [pytest.mark.attack, pytest.mark.processes]
STRANGER = "stranger on the network"


def memory(pid: int) -> float:
    """Return the megabytes that a process holds."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1000


def test_two_hundred_hostile_connections(tmp_path: Path, record_attack: Recorder) -> None:
    changes = {"train": {"rounds": 40}, "scenario": {"tasks": 2}}
    with arena(tmp_path, "refed+feat", 2, **changes) as field:
        for k in (0, 1):
            field.client(k)
        server = field.server()
        field.wait_for_rounds(1, server)
        gateway = json.loads((field.run / "federation" / "gateway.state.json").read_text())["pid"]
        before = memory(gateway)
        program = [sys.executable, str(HERE / "hostile_connections.py"), field.address, str(field.keys)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        answers: dict[str, dict[str, int]] = json.loads(done.stdout)
        grown = memory(gateway) - before
        result = field.finish(server)
        assert field.equals_simulation(result)
    assert result["rounds_with_fewer_clients"] == [], "honest clients were not held up"
    assert processes_that_mention(str(tmp_path)) == []
    assert sum(sum(counts.values()) for counts in answers.values()) >= 200
    for kind in ("paths", "methods", "two readings", "oversize", "forged log lines", "keys", "plaintext"):
        assert set(answers[kind]) <= {"400", "401", "403", "405", "411", "413", "431", "501", "505", "closed"}, kind
    assert set(answers["keys"]) <= {"400", "401", "403"}
    assert answers["unfinished"].keys() == {"closed"}
    assert answers["many"]["open"] <= 128
    assert grown < 100, f"the gateway holds {grown:.0f} MB more"
    log = (field.run / "federation" / "gateway.log").read_text() + (field.run / "audit.jsonl").read_text()
    assert not re.search(r"^2026-01-01|^2026 WARNING|\x1b", log, re.MULTILINE)
    assert field.audit("request refused"), "refusals are in the audit log"

    def told(kind: str) -> str:
        return ", ".join(f"{count} x {status}" for status, count in sorted(answers[kind].items()))

    rows = {
        "paths": f"another path than clients need, {len(PATHS)} spellings",
        "methods": f"another method than POST ({len(METHODS)})",
        "two readings": f"requests that two programs would read differently ({len(TWO_READINGS)})",
        "oversize": f"oversize paths, headers and bodies ({len(OVERSIZE)})",
        "forged log lines": "line breaks and escape codes in a path, for the log",
        "keys": "no key, an unknown one, another's, recorded and forged signatures",
        "plaintext": "no TLS",
        "many": "200 connections at once from one address",
        "unfinished": "requests and handshakes that are never finished",
    }
    for kind, attack in rows.items():
        outcome = f"nothing gets through ({told(kind)}); the run is as without it"
        record_attack(STRANGER, attack, outcome, sum(answers[kind].values()))
