"""A server that asks ``fedfeat client`` for more than its policy gives: every such question is refused."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from attack.arena import HERE, fedfeat, stop
from attack_table import Recorder
from engines.flower.own_images import write_owners
from fedfeat.engines.flower.addresses import free_port

pytestmark = [pytest.mark.attack, pytest.mark.processes]
POLICY = """own_data = true
clip = 1.0
noise = 0.5
methods = ["finetune"]
operations = ["train"]
one_answer = true
most_updates = 10
"""
PLUGIN = """from pathlib import Path
Path("{mark}").touch()
"""
REFUSED = {
    "another protocol": "protocol 99",
    "a plugin of the server's choice": "--plugin",
    "a plugin, as rubbish": "PluginError",
    "data called public": "set data.name = 'owned'",
    "no clipping, no noise": "clipped to 1 or less",
    "less noise": "noise of 0.5 or more",
    "another method": "not among finetune",
    "a run called ../../x": "see the client's log",
    "a run with a forged log line as its name": "see the client's log",
    "a question before hello": "run r1 is unknown here",
    "second hello without noise": "clipped to 1 or less",
    "second hello with more rounds": "changed settings of a run that has begun (train.rounds)",
    "the same round with other weights": "each is answered once",
    "another client's id": "not client 1 of the run",
    "a task that is not there": "no task 8",
    "round -1": "with a round 0",
    "round 99": "with a round 100",
    "task as text": "see the client's log",
    "an operation that is not allowed": "is not among train",
    "an operation with a forged log line as its name": "is not among train",
    "an operation with a name of 3 MB": "is not among train",
    "another run": "run r2 is unknown here",
    "weights of another shape": "see the client's log",
    "a request that cannot be read": "see the client's log",
    "a message of another kind": "are not answered here",
    "a rollback without permission": "the client's owner allows it with most_rollbacks",
    "an earlier round, without a word": "lies before what this client keeps",
    "rollbacks, as rubbish": "most_rollbacks",
}
HONEST = ("honest hello", "honest question", "the same question again")


def test_a_server_that_asks_for_more_than_it_may(tmp_path: Path, record_attack: Recorder) -> None:
    data, port = write_owners(tmp_path / "data")["clinic-a"], free_port()
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "own.py").write_text(PLUGIN.format(mark=tmp_path / "plugin-was-run"))
    digest = hashlib.sha256((tmp_path / "own.py").read_bytes()).hexdigest()
    (tmp_path / "plugin.txt").write_text(f"{tmp_path / 'own.py'}@sha256:{digest}")
    where = ("--server", f"127.0.0.1:{port}", "--name", "clinic", "--data", data, "--state", tmp_path / "state")
    with ExitStack() as stack:
        output = stack.enter_context((tmp_path / "client.txt").open("wb"))
        command = fedfeat("client", *where, "--policy", tmp_path / "policy.toml", "--device", "cpu")
        client = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        stack.callback(stop, client)
        program = [sys.executable, str(HERE / "hostile_server.py"), str(tmp_path), str(port)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=300)
        assert client.poll() is None, "it is still there"
    assert (tmp_path / "answers.json").exists(), done.stdout + done.stderr + (tmp_path / "client.txt").read_text()
    answers = json.loads((tmp_path / "answers.json").read_text())
    reasons: dict[str, str] = {}
    wrong = []
    for answer in answers:
        told = answer.get("told", {})
        why = answer.get("lost") or told.get("refused") or told.get("failed")
        if answer["name"] in REFUSED:
            reasons[answer["name"]] = why or "answered"
            fits = REFUSED[answer["name"]] in reasons[answer["name"]] and len(reasons[answer["name"]]) < 400
            if answer.get("bytes", 0) or not fits:
                wrong.append((answer["name"], reasons[answer["name"]]))
        elif why is not None or not answer["name"].startswith(HONEST):
            wrong.append((answer["name"], why))
    assert wrong == []
    assert reasons.keys() == REFUSED.keys()
    assert not (tmp_path / "plugin-was-run").exists()
    same = [answer["digest"] for answer in answers if answer["name"] in HONEST[1:]]
    assert len(set(same)) == 1, "the same question gets the same bytes"
    assert json.loads((tmp_path / "state" / "state" / "account.json").read_text())["updates"] == 4
    log = (tmp_path / "state" / "clinic.log").read_text()
    assert "\n2026-01-01 00:00:00 all is well" not in log
    audit = [json.loads(line) for line in (tmp_path / "state" / "state" / "audit.jsonl").read_text().splitlines()]
    kinds = Counter(line["event"] for line in audit)
    assert kinds["answered"] == 5
    assert kinds["request refused"] + kinds["run refused"] >= 35
    for name, times in Counter(answer["name"] for answer in answers if answer["name"] in REFUSED).items():
        record_attack("server", name, f"refused: “{reasons[name][:100]}”", times)
