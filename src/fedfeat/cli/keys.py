"""``fedfeat keys``: certificates and keys for a federation across machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedfeat.core.errors import ConfigError, MissingExtra


def keys(
    out: Annotated[Path, typer.Option(help="folder for the set; never overwritten")],
    host: Annotated[
        list[str] | None, typer.Option(help="name or IP of the server, as clients see it; may repeat")
    ] = None,
    clients: Annotated[str | None, typer.Option(help="how many clients, or their names with commas")] = None,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="how long the server's certificate and clients' keys hold")
    ] = 825,
    add: Annotated[bool, typer.Option("--add", help="add clients to the set that is there")] = False,
    renew: Annotated[
        bool, typer.Option("--renew", help="a new certificate for the server; with --clients, more time for their keys")
    ] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="refuse the keys of --clients from now on")] = False,
    reason: Annotated[str, typer.Option(help="why keys are revoked; the clients are told")] = "",
) -> None:
    """Make keys of clients, a certificate authority and a server certificate; revoke or renew keys."""
    try:
        from fedfeat.engines.flower import client_keys
        from fedfeat.engines.flower import keys as make
    except ModuleNotFoundError as error:
        raise MissingExtra("cryptography", "flower", "making keys") from error
    if add + renew + revoke > 1:
        raise ConfigError("--add, --renew and --revoke: choose one at a time")
    if renew and clients is None:
        make.renew_server(out, host or [], days)
        typer.echo(f"{out / 'server'}: new key and certificate; copy the folder to the server and restart it")
        return
    if clients is None:
        raise ConfigError("--clients: expected a number of clients or their names, got nothing")
    names = make.client_names(clients)
    if revoke or renew:
        files = client_keys.revoke(out, names, reason) if revoke else client_keys.prolong(out, names, days)
        for path in files:
            typer.echo(f"{path}: a running server takes it within seconds, from 'clients' in its folder of keys")
        return
    if add:
        make.add_clients(out, names, days)
    else:
        make.make_keys(out, host or [], names, days)
    _say_what_goes_where(out, names, host[0] if host else "HOST")


def _say_what_goes_where(out: Path, names: list[str], host: str) -> None:
    """Print a line per folder, and the commands that use them."""
    rows = [(out / "server", "to the server")]
    rows += [(out / "clients" / name, f"to {name}") for name in names[:8]]
    rows += [(out / "clients" / "...", f"{len(names) - 8} more, each to its client")] if len(names) > 8 else []
    rows += [(out / "authority", "to nobody: keep it offline, only --renew needs it")]
    width = max(len(str(folder)) for folder, _ in rows)
    for folder, where in rows:
        typer.echo(f"{folder!s:<{width}}  {where}")
    typer.echo("on the server:   fedfeat server CONFIG.toml --keys server")
    typer.echo(f"on each client:  fedfeat client --server {host}:PORT --keys {names[0]} --data PATH")
