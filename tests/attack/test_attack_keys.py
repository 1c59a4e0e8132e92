"""Keys that are revoked or expire while ``fedfeat server`` runs, and other accounts on its machine."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from attack.arena import Arena, arena, fedfeat
from attack_table import Recorder
from engines.flower.federations import eventually, processes_that_mention

pytestmark = [pytest.mark.attack, pytest.mark.processes]

# What any account can do at a SuperLink's port: let in a key of its own, and start an app as the server's account.
INTRUDER = """
import os, sys
from pathlib import Path
from cryptography.hazmat.primitives import serialization
from fedfeat.engines.flower import certificates
from fedfeat.engines.flower.control import Control
form = serialization.PublicFormat.SubjectPublicKeyInfo
pem = certificates.new_key().public_key().public_bytes(serialization.Encoding.PEM, form)
with Control(sys.argv[1], Path(sys.argv[2]), patience=2.0) as control:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)  # nobody; the certificate is public anyway
    print("registered", control.register(pem, "intruder"))
"""


def superlink_port(field: Arena) -> int:
    """Return the port of the SuperLink, which stands in its command line for everybody to read."""
    lines = [line for line in processes_that_mention("engines.flower.superlink") if str(field.keys) in line]
    found = re.search(r"--port (\d+)", lines[0])
    assert found is not None
    return int(found[1])


def intrude(field: Arena) -> str:
    """Try to register a key at the SuperLink as another account of this machine."""
    authority = field.keys / "server" / "ca.crt"
    command = [sys.executable, "-c", INTRUDER, f"127.0.0.1:{superlink_port(field)}", str(authority)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


def asked_after_refusal(field: Arena, name: str) -> int:
    """Return how many exchanges a client was part of after it was shut out, by the times of the audit log."""
    when = next(line["time"] for line in field.audit("key refused") if line["name"] == name)
    number = int(name.removeprefix("client-"))
    asked = [line for line in field.audit("asked") if line["time"] > when and number in line["clients"]]
    return len(asked)


def test_keys_that_are_revoked_or_expire_in_a_run(tmp_path: Path, record_attack: Recorder) -> None:
    settings = {"train": {"rounds": 60}, "scenario": {"tasks": 2}, "federation": {"quorum": 0.3, "deadline": 60.0}}
    with arena(tmp_path, "refed+feat", 3, **settings) as field:
        clients = [field.client(k) for k in range(3)]
        server = field.server()
        field.wait_for_rounds(2, server)
        told = fedfeat(
            "keys", "--out", field.keys, "--revoke", "--clients", "client-2", "--reason", "laptop was stolen"
        )
        subprocess.run(told, check=True, capture_output=True)
        assert clients[2].wait(60) == 2, field.said("client-2")
        assert "this client's key was revoked: laptop was stolen" in field.said("client-2")
        field.wait_for_rounds(len(field.events()) + 2, server)

        public = field.keys / "server" / "clients" / "client-1.pub"
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=3)
        public.write_bytes(re.sub(rb"expires=\S+", b"expires=" + soon.isoformat().encode(), public.read_bytes()))
        assert clients[1].wait(60) == 2, field.said("client-1")
        assert "this client's key expired on" in field.said("client-1")
        field.wait_for_rounds(len(field.events()) + 2, server)

        again = field.client(2)
        assert again.wait(60) == 2, "a client that is started again is refused at once"
        result = field.finish(server)
    told_of = {line["name"]: line["reason"] for line in field.audit("key refused")}
    assert "laptop was stolen" in told_of["client-2"]
    assert "expired" in told_of["client-1"]
    assert "client-2 is shut out" in field.said("server")
    late = {name: asked_after_refusal(field, name) for name in ("client-1", "client-2")}
    assert max(late.values()) <= 1, f"asked again after that: {late}"
    assert [e["clients"] - e["replied"] for e in field.events()][-1] == 2
    assert field.equals_simulation(result)
    told_client = "shut out within a round; its command ends with “the server says: this client's key {}”"
    record_attack("client with a revoked key", "goes on in a run, comes back", told_client.format("was revoked: ..."))
    record_attack("client with an expired key", "goes on in a run", told_client.format("expired on ..."))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root, to act as another account")
def test_another_account_at_the_superlinks_port(tmp_path: Path, record_attack: Recorder) -> None:
    seen = {}
    for name, environment in {"isolated": {}, "open": {"FEDFEAT_NAMESPACE": "switched off by this test"}}.items():
        (tmp_path / name).mkdir()
        with arena(tmp_path / name, "finetune", 1, environment) as field:
            server = field.server()
            eventually(lambda f=field: "waiting for 1 clients" in f.said("server"), 120, "the server")
            assert server.poll() is None, field.said("server")
            seen[name] = intrude(field)
            warned = "no network namespace for the SuperLink" in field.said("server")
            assert warned == (name == "open"), field.said("server")
    assert "onnection" in seen["isolated"], seen
    assert "403" in seen["open"], f"without a namespace the SuperLink looks whose account asks: {seen}"
    outcome = "nobody listens there: the SuperLink is in a network namespace; where none is allowed it answers 403"
    record_attack("local account", "registers a key at the SuperLink's port", outcome)
