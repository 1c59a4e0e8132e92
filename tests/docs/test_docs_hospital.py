"""The commands of "Deploying at a hospital", typed in their order, with processes in the place of machines."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from documents import ROOT, SHELL, blocks_of, commands_of
from shell import environment

from engines.flower.federations import eventually
from engines.flower.own_images import OWNERS, write_images
from fedfeat.engines.flower.addresses import free_port
from fedfeat.runs.folder import RunFolder

pytestmark = [pytest.mark.docs, pytest.mark.processes]
HOSPITALS = ("hospital-a", "hospital-c")
ROUNDS = 18  # per task; a client that is shut out has to notice before its server has finished and gone
SMALLER = {  # two hospitals with small images
    "clients = 3": "clients = 2",
    "rounds = 20": f"rounds = {ROUNDS}",
    "[32, 32, 3]": "[8, 8, 1]",
    "wait = 60": "wait = 5",
}


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """Save the files of the page, and return its commands by their first words, for a server on this machine."""
    found: dict[str, str] = {}
    address = f"127.0.0.1:{free_port()}"
    for block in blocks_of(ROOT / "docs" / "hospital.md"):
        if block.file:
            text = block.text
            for there, here in SMALLER.items():
                text = text.replace(there, here)
            (tmp_path / block.file).write_text(text)
        elif block.language in SHELL:
            for command in commands_of(block):
                text = command.text.replace("fl.example.org:9092", address).replace("0.0.0.0:9092", address)
                found[" ".join(command.words[1:2]) + (" --revoke" if "--revoke" in command.words else "")] = text
    assert list(found) == ["keys", "server", "client", "keys --revoke", "rollback"], "five commands, in this order"
    return found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def start(command: str, folder: Path, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start a command in a folder; its output is in output.txt, and it is stopped in the end."""
    folder.mkdir(exist_ok=True)
    with (folder / "output.txt").open("ab") as output:
        words = ["bash", "-c", f"exec {command}"]
        process = subprocess.Popen(words, cwd=folder, env=environment(), stdout=output, stderr=subprocess.STDOUT)

    def stop() -> None:
        process.send_signal(signal.SIGTERM)
        process.wait(60)

    stack.callback(stop)
    return process


def test_the_commands_of_the_page_deploy_a_federation(
    tmp_path: Path, commands: dict[str, str], stack: ExitStack
) -> None:
    subprocess.run(commands["keys"], shell=True, cwd=tmp_path, env=environment(), check=True, capture_output=True)
    run, rounds = tmp_path / "runs" / "hospital", lambda: [e for e in RunFolder(run).events() if e["event"] == "round"]
    clients = {}
    for hospital, classes in zip(HOSPITALS, OWNERS.values(), strict=False):
        machine = tmp_path / hospital
        for name, count in classes.items():
            write_images(machine / "images", name, count)
        for name in ("policy.toml", "federation-keys"):
            (machine / name).symlink_to(tmp_path / name)
        clients[hospital] = start(commands["client"].replace("hospital-a", hospital), machine, stack)
    server = start(commands["server"], tmp_path, stack)
    eventually(lambda: len(rounds()) >= 1 or server.poll() is not None, 240, "the first round")
    assert server.poll() is None, (tmp_path / "output.txt").read_text()
    subprocess.run(commands["keys --revoke"], shell=True, cwd=tmp_path, env=environment(), check=True)
    assert clients["hospital-c"].wait(90) == 2
    assert "was revoked: left the study" in (tmp_path / "hospital-c" / "output.txt").read_text()
    assert server.wait(300) == 0, (tmp_path / "output.txt").read_text()
    spent = json.loads((run / "result.json").read_text())["privacy"]

    subprocess.run(commands["rollback"], shell=True, cwd=tmp_path, env=environment(), check=True, capture_output=True)
    again = start(commands["server"], tmp_path, stack)
    assert again.wait(300) == 0, (tmp_path / "output.txt").read_text()
    result = json.loads((run / "result.json").read_text())
    assert result["rollbacks"][0]["to"] == "1:end"
    assert result["privacy"]["releases"] == spent["releases"] + ROUNDS
    assert rounds()[-1]["replied"] == 1, "the hospital that is left went back too"
    audit = {json.loads(line)["event"] for line in (run / "audit.jsonl").read_text().splitlines()}
    assert {"joined", "asked", "key accepted", "key refused"} <= audit
    (own,) = (tmp_path / "hospital-a").glob("runs/clients/hospital-a/state/audit.jsonl")
    assert "answered" in own.read_text()
    assert own.stat().st_mode & 0o077 == 0
