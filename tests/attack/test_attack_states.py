"""States that are lost or flipped on disk, on both sides, and clients that keep silent, in a federation of commands."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from attack.arena import Arena, arena, stop
from attack_table import Recorder
from engines.flower.federations import eventually

pytestmark = [pytest.mark.attack, pytest.mark.processes, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SETTINGS = {"train": {"rounds": 40}, "scenario": {"tasks": 2, "budget": 24}, "federation": {"quorum": 0.3}}


def flip_bits(paths: list[Path]) -> int:
    """Flip one bit in the middle of each file."""
    for path in paths:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 4
        path.write_bytes(bytes(content))
    return len(paths)


def in_second_task(field: Arena) -> None:
    eventually(lambda: any(e["task"] == 2 for e in field.events()), 240, "the second task")


def test_flipped_bits_in_the_states_of_client_and_server(tmp_path: Path, record_attack: Recorder) -> None:
    with arena(tmp_path, "refed+feat", 2, **SETTINGS) as field:
        clients = [field.client(k) for k in (0, 1)]
        server = field.server()
        in_second_task(field)
        stop(server)
        stop(clients[0])
        (store,) = (tmp_path / "client-0" / "state").glob("*/store")
        states = [path for path in (store / "objects").iterdir() if (store / "copies" / path.name).exists()]
        flipped = flip_bits([*states, store / "journal.checked.json"])
        newest = max(p for p in (field.run / "checkpoint").iterdir() if p.name.isdigit())
        flipped_there = flip_bits([newest / "server.safetensors"])
        field.client(0)
        result = field.finish(field.server())
        assert result["rounds_with_fewer_clients"] == []
        assert "lost_states" not in result
        assert field.equals_simulation(result)
    record_attack("disk", "flipped bits in a client's state", "its copy is used; the result is the same", flipped)
    outcome = "the checksum does not match, the checkpoint before it is used; the result is the same"
    record_attack("disk", "flipped bits in the server's newest checkpoint", outcome, flipped_there)


def test_a_client_that_lost_its_state_goes_on_without_its_exemplars(tmp_path: Path, record_attack: Recorder) -> None:
    with arena(tmp_path, "refed+feat", 2, **SETTINGS) as field:
        clients = [field.client(k) for k in (0, 1)]
        server = field.server()
        in_second_task(field)
        server.send_signal(signal.SIGSTOP)  # nothing: its processes go on; only the command waits
        stop(clients[1])
        shutil.rmtree(tmp_path / "client-1")
        server.send_signal(signal.SIGCONT)
        field.client(1)
        result = field.finish(server)
    assert [loss["client"] for loss in result["lost_states"]] == [1]
    assert 0 < result["lost_states"][0]["exemplars"] < 24, "those of the other client are left"
    assert field.events()[-1]["replied"] == 2
    outcome = "the server notices by its generation number and tells it again what all share; the result names the loss"
    record_attack("disk", "a client's state is gone", outcome)


def test_a_silent_client_costs_a_deadline_and_then_is_left_alone(tmp_path: Path, record_attack: Recorder) -> None:
    settings = {**SETTINGS, "federation": {"quorum": 0.3, "deadline": 8.0}, "train": {"rounds": 15}}
    with arena(tmp_path, "finetune", 2, **settings) as field:
        field.hostile_client(1, {f"1.{round}.train": "silent" for round in range(3, 16)})
        field.client(0)
        result = field.finish(field.server())
        assert field.equals_simulation(result)
    slow = [e for e in field.events() if e["seconds"] > 6]
    assert 1 <= len(slow) <= 6, "not every round waits for it"
    assert any("silent" in reason for e in field.events() for reason in e["missing"].values())
    outcome = f"counts as missing; {len(slow)} of 30 rounds wait until the deadline, the others do not ask it"
    record_attack("client with a key", "accepts requests and keeps silent", outcome, 13)
