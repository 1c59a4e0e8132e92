"""The client app in Flower's stock mode: an interpreter per message, which finds everything it needs on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfeat.engines.flower.logs import show_log
from fedfeat.engines.flower.own_data import ClientData
from fedfeat.engines.flower.protocol import ASK, HELLO
from fedfeat.engines.flower.records import from_records, to_records
from fedfeat.engines.flower.site import Site, SiteSettings

app = ClientApp()


def reply_to(site: Site, kind: str, message: Message) -> Message:
    """Have a client answer one of Flower's messages."""
    header, packed = from_records(message.content)
    answer = (site.hello(header), None) if kind == HELLO else site.ask(header, packed)
    return Message(to_records(*answer), reply_to=message)


def site_of(config: dict[str, Any]) -> Site:
    """Return the client that a SuperNode's configuration describes."""
    show_log()
    client, data = int(config.get("client", -1)), str(config.get("data", ""))
    settings = SiteSettings(
        folder=Path(str(config["folder"])),
        name=str(config["name"]),
        client=client if client >= 0 else None,
        device=str(config.get("device", "auto")),
        threads=int(config["threads"]) if "threads" in config else None,
        plugins=tuple(p for p in str(config.get("plugins", "")).split(":") if p),
    )
    return Site(settings, ClientData(Path(data) if data else None))


@app.query(HELLO)
def hello(message: Message, context: Context) -> Message:
    """Say who this is."""
    return reply_to(site_of(dict(context.node_config)), HELLO, message)


@app.query(ASK)
def ask(message: Message, context: Context) -> Message:
    """Run an operation."""
    return reply_to(site_of(dict(context.node_config)), ASK, message)
