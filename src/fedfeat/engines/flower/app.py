"""The app that Flower runs: the shims that it ships, the client app of stock mode, and the log of its processes.

In stock mode Flower starts an interpreter per message, which finds everything it needs on disk.
"""

from __future__ import annotations

import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfeat import __version__
from fedfeat.core.errors import one_line
from fedfeat.engines.flower.client import ClientSettings, FederationClient
from fedfeat.engines.flower.guard import LARGEST_LOG
from fedfeat.engines.flower.messages import ASK, HELLO, from_records, to_records
from fedfeat.engines.flower.policy import ClientPolicy, read_policy

CLIENT_SHIM = """from fedfeat.engines.flower.app import client

__all__ = ["client"]
"""

SERVER_SHIM = """from fedfeat.runs.server_app import app

__all__ = ["app"]
"""

PROJECT = f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedfeat-app"
version = "{__version__}"
dependencies = []

[tool.flwr.app]
publisher = "fedfeat"

[tool.flwr.app.components]
serverapp = "fedfeat_server:app"
clientapp = "fedfeat_client:client"

[tool.flwr.app.config]
folder = ""
"""

MOST_LOGGED = 2000  # characters of a message in a log
client = ClientApp()


def app_files() -> dict[str, bytes]:
    """Return the app by file name; no code of ours travels, so clients run what they have installed."""
    files = {"pyproject.toml": PROJECT, "fedfeat_client.py": CLIENT_SHIM, "fedfeat_server.py": SERVER_SHIM}
    return {name: text.encode() for name, text in files.items()}


def make_client(config: dict[str, Any]) -> FederationClient:
    """Return the client that a SuperNode's configuration describes."""
    show_log()
    number, data = int(config.get("client", -1)), str(config.get("data", ""))
    settings = ClientSettings(
        folder=Path(str(config["folder"])),
        name=str(config["name"]),
        client=number if number >= 0 else None,
        device=str(config.get("device", "auto")),
        threads=int(config["threads"]) if "threads" in config else None,
        plugins=tuple(p for p in str(config.get("plugins", "")).split(":") if p),
        model=str(config["model"]) if "model" in config else None,
        policy=read_policy(Path(str(config["policy"]))) if config.get("policy") else ClientPolicy(),
        key=Path(str(config["key"])) if config.get("key") else None,
    )
    return FederationClient(settings, Path(data) if data else None)


def reply_to(client: FederationClient, kind: str, message: Message) -> Message:
    """Have a client answer one of Flower's messages."""
    header, packed = from_records(message.content)
    answer = (client.hello(header), None) if kind == HELLO else client.ask(header, packed)
    return Message(to_records(*answer), reply_to=message)


@client.query(HELLO)
def hello(message: Message, context: Context) -> Message:
    """Say who this is."""
    return reply_to(make_client(dict(context.node_config)), HELLO, message)


@client.query(ASK)
def ask(message: Message, context: Context) -> Message:
    """Run an operation."""
    return reply_to(make_client(dict(context.node_config)), ASK, message)


def show_log(*, dates: bool = False, file: Path | None = None) -> None:
    """Print our log lines to the standard output, or write them to a file; of Flower's only warnings."""
    logger = logging.getLogger("fedfeat")
    if not logger.handlers:
        handler: logging.Handler = logging.StreamHandler(sys.stdout)
        if file is not None:
            handler = RotatingFileHandler(file, maxBytes=LARGEST_LOG, backupCount=1)
        level = "" if file is None else "%(levelname)s "
        form = f"%(asctime)s {level}%(message)s" if dates else "%(message)s"
        handler.setFormatter(OneLine(form, datefmt="%Y-%m-%d %H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    flower = logging.getLogger("flwr")
    flower.setLevel(logging.WARNING)
    flower.addFilter(_first_line)


class OneLine(logging.Formatter):
    """A line per message, whatever a stranger's words in it hold; lines of a traceback are indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the library's name)
        """Return the line."""
        record.message = one_line(record.message, MOST_LOGGED)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Return the traceback."""
        lines = super().formatException(ei)[-MOST_LOGGED:].splitlines()
        return "\n".join("    " + one_line(line, MOST_LOGGED) for line in lines)


def _first_line(record: logging.LogRecord) -> bool:
    """Cut a message of Flower's, which may fill a page, to its first line."""
    lines = [line.strip() for line in record.getMessage().splitlines() if line.strip()]
    record.msg, record.args = (lines[0] if lines else ""), None
    return bool(lines)
