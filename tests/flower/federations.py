"""Helpers of the federation tests: waiting, looking at processes, and a small app of Flower."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest


def eventually(condition: Callable[[], object], seconds: float = 30.0, what: str = "the condition") -> None:
    """Wait until something is true; fail when it does not become so."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            pytest.fail(f"{what} did not come true within {seconds:g} s")
        time.sleep(0.05)


def running(pid: int) -> bool:
    """Tell whether a process exists and is more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def processes_that_mention(text: str) -> list[str]:
    """Return the command lines of all running processes that hold a text, such as a folder of this test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line and running(int(entry.name)):
            found.append(line)
    return found


PYPROJECT = b"""
[project]
name = "echo"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedfeat"

[tool.flwr.app.components]
serverapp = "echo.apps:server"
clientapp = "echo.apps:client"

[tool.flwr.app.config]
out = ""
nodes = 1
"""

APPS = b"""
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def answer(message, context):
    number = message.content["question"]["number"]
    return Message(RecordDict({"answer": ConfigRecord({"number": 2 * number})}), reply_to=message)


@server.main()
def main(grid, context):
    while len(nodes := sorted(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.1)
    asked = [
        Message(RecordDict({"question": ConfigRecord({"number": 21 + i})}), dst_node_id=node, message_type="query")
        for i, node in enumerate(nodes)
    ]
    waiting, answers = set(grid.push_messages(asked)), []
    while waiting:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            answers.append(reply.content["answer"]["number"])
        time.sleep(0.1)
    Path(context.run_config["out"]).write_text(" ".join(map(str, sorted(answers))))
"""

ECHO_APP = {"pyproject.toml": PYPROJECT, "echo/__init__.py": b"", "echo/apps.py": APPS}
