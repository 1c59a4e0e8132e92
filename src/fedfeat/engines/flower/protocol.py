"""What server and clients say to each other besides payloads: one version, and small headers of plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedfeat.config import Config, make_config
from fedfeat.config.config import Table

PROTOCOL = 1  # both sides must speak the same
Header = dict[str, Any]  # plain values, sent as JSON

HELLO, ASK = "hello", "ask"


def config_to_send(config: Config) -> Table:
    """Return what clients need of a configuration: not where the server keeps things, nor how it waits."""
    table = config.to_table()
    for name in ("run", "federation", "plugins", "tracker"):
        table.pop(name, None)
    table["data"] = {k: v for k, v in table["data"].items() if k != "path"}
    return table


def config_received(table: Mapping[str, Any], *, engine: Mapping[str, Any], plugins: list[str]) -> Config:
    """Return the configuration as a client runs it: on its own device, with its own files of methods."""
    received = {**table, "engine": {**table["engine"], **engine}}
    return make_config({**received, "plugins": plugins} if plugins else received, where="the server's configuration")
