"""``fedfeat federate``, ``fedfeat server`` and ``fedfeat client``: a run whose clients are processes or machines."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from fedfeat.cli.progress import RunProgress, console
from fedfeat.cli.report import write_run_report
from fedfeat.cli.run import ConfigFile, Overrides, Plugins
from fedfeat.config.config import Config, load_config
from fedfeat.config.deciding import PIN
from fedfeat.core.errors import ConfigError, FedfeatError, MissingExtra
from fedfeat.data.settings import OWNED
from fedfeat.runs.experiment import run_name

Out = Annotated[Path | None, typer.Option(help="run folder to write, or to continue")]
Clients = Annotated[int | None, typer.Option(min=1, help="number of clients; default is scenario.clients")]
Stock = Annotated[bool, typer.Option("--stock", help="Flower's own SuperNode: an interpreter per message, slower")]
Device = Annotated[str, typer.Option(help="where clients compute: cpu, cuda or auto")]
Policy = Annotated[Path | None, typer.Option(help="file: what may leave a client, whatever the server asks")]
Database = Annotated[
    bool,
    typer.Option("--database", help="Flower keeps messages on disk: slower; a restart of its SuperLink ends no round"),
]
LAST_MONTH = datetime.timedelta(days=30)


def federate(
    config: ConfigFile,
    clients: Clients = None,
    set: Overrides = None,
    plugin: Plugins = None,
    out: Out = None,
    device: Device = "auto",
    policy: Policy = None,
    stock: Stock = False,
) -> None:
    """Run an experiment on this machine with a server and clients as real processes."""
    deploy = _deploy()
    told = _policy(policy)
    planned = _planned(config, clients, set, plugin)
    owners = _owners(planned, clients)
    if owners:
        planned = _planned(config, len(owners), set, plugin)
    path = out or _folder(planned)
    run = deploy.prepare_run(planned, path)
    places = owners or {f"client-{k}": planned.data.path for k in range(planned.scenario.clients)}
    console.print(f"starting a server and {len(places)} clients; their logs are in {path / 'federation'}")
    with _stoppable(), ExitStack() as stack:
        server = stack.enter_context(deploy.server(path / "federation"))
        for k, (name, data) in enumerate(places.items()):
            options = {**_options(data, device, planned.plugins, client=k), **told}
            folder = path / "federation" / name
            stack.enter_context(deploy.client(folder, name, server.address, options, stock=stock))
        _watch(server, run)


def server(
    config: ConfigFile,
    clients: Clients = None,
    set: Overrides = None,
    plugin: Plugins = None,
    out: Out = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="where clients connect")] = "127.0.0.1:9092",
    keys: Annotated[Path | None, typer.Option(help="the server's folder of a set made by 'fedfeat keys'")] = None,
    database: Database = False,
) -> None:
    """Run an experiment with clients that connect from elsewhere; continues what the run folder holds."""
    deploy = _deploy()
    from fedfeat.engines.flower.addresses import split_address
    from fedfeat.engines.flower.keys import read_server_keys

    host, port = split_address(listen)
    known = None if keys is None else read_server_keys(keys)
    planned = _planned(config, clients, set, plugin)
    path = out or _folder(planned)
    if known is not None:
        _leave_network(planned, host, port)
    run = deploy.prepare_run(planned, path)
    with (
        _stoppable(),
        deploy.server(path / "federation", host=host, port=port, keys=known, database=database) as started,
    ):
        console.print(f"waiting for {planned.scenario.clients} clients at {started.address}")
        if known is not None and len(known.clients) < planned.scenario.clients:
            console.print(
                f"only {len(known.clients)} clients have a key in {keys}, so the others cannot join: add keys with "
                "'fedfeat keys --add', or start with fewer --clients",
                style="yellow",
            )
        _watch(started, run)


def client(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="the server's address")],
    data: Annotated[Path | None, typer.Option(help="this client's data; default is where 'fedfeat data' looks")] = None,
    model: Annotated[
        Path | None, typer.Option(help="folder of the pre-trained model; default is the server's model.path")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="this client's folder of a set made by 'fedfeat keys'")] = None,
    name: Annotated[str | None, typer.Option(help="what the server calls this client; default is its key's")] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="which of the scenario's clients, from 0; default is the server's choice")
    ] = None,
    state: Annotated[Path | None, typer.Option(help="what this client keeps; default runs/clients/NAME")] = None,
    device: Device = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default is the server's setting")] = None,
    plugin: Plugins = None,
    policy: Policy = None,
    stock: Stock = False,
) -> None:
    """Take part in a federation: connect, wait for work, keep the data here. Runs until it is stopped."""
    deploy = _deploy()
    from fedfeat.engines.flower.addresses import check_server, key_refusal, split_address
    from fedfeat.engines.flower.keys import read_client_keys

    host, port = split_address(server)
    known = None if keys is None else read_client_keys(keys)
    called = name or (known.name if known else socket.gethostname())
    options = _options(data, device, plugin or (), model=model, threads=threads, client=client)
    options |= _policy(policy)
    folder = state or Path("runs") / "clients" / called
    process = deploy.client(folder, called, f"{host}:{port}", options, keys=known, stock=stock)
    console.print(f"{called}: server {host}:{port}, state in {folder}, log in {process.log}; Ctrl-C ends it")
    if not check_server(host, port, None if known is None else known.ca):
        console.print(f"nobody answers at {host}:{port} yet; waiting")
    elif known is not None:
        _refuse_key(key_refusal(server, known.ca, known.key), known.expires)
    position = process.log.stat().st_size if process.log.exists() else 0
    with _stoppable(), process:
        while True:
            lines, position = deploy.read_lines(process.log, position)
            for line in lines:
                console.print(line)
            if not process.alive():
                _refuse_key(None if known is None else key_refusal(server, known.ca, known.key), None)
                raise FedfeatError(f"{called} ended; see {process.log}")
            time.sleep(0.2)


def _refuse_key(refusal: str | None, expires: datetime.datetime | None) -> None:
    """End where the server refuses this client's key, and warn in its last month."""
    if refusal is not None:
        raise FedfeatError(f"the server says: {refusal}")
    if expires is not None and expires - datetime.datetime.now(datetime.UTC) < LAST_MONTH:
        console.print(f"this client's key holds until {expires:%Y-%m-%d}; ask for more time", style="yellow")


def _leave_network(config: Config, host: str, port: int) -> None:
    """Go on in a network of one's own, so that other accounts here cannot reach the SuperLink; or say why they can."""
    from fedfeat.engines.flower import namespace
    from fedfeat.engines.flower.addresses import need_free, open_socket

    online = config.tracker.wandb and os.environ.get("WANDB_MODE", "offline") != "offline"
    state = namespace.namespace_state()
    if online or str(config.tracker.mlflow or "").startswith("http"):
        state = "a tracker needs the network"
    elif state is None and sys.argv[1:2] == ["server"]:  # this very process is the command
        need_free(host, port)
        namespace.enter_namespace(open_socket(host, port), [sys.executable, "-m", "fedfeat", *sys.argv[1:]])
    if state != namespace.INSIDE:
        console.print(
            f"no network namespace for the SuperLink: {state or 'not tried'}; other accounts of this machine can reach "
            "its port on 127.0.0.1, where on Linux it refuses them, and elsewhere does not",
            style="yellow",
        )


def _deploy() -> Any:
    """Return what starts processes; without Flower one sentence says what to install."""
    try:
        from fedfeat.runs import deploy
    except ModuleNotFoundError as error:
        raise MissingExtra("flwr", "flower", "a federation of processes") from error
    return deploy


def _planned(config: Path, clients: int | None, overrides: list[str] | None, plugins: list[Path] | None) -> Config:
    changes = [*(overrides or ()), *([f"scenario.clients={clients}"] if clients else [])]
    planned: Config = _deploy().federated(load_config(config, changes, plugins or ()))
    return planned


def _owners(config: Config, clients: int | None) -> dict[str, str | None]:
    """Return the folder of every client that owns its data, by name; nothing for a data set that all share."""
    if config.data.name != OWNED:
        return {}
    root = config.data.location()
    if root is None or not root.is_dir():
        raise ConfigError(
            f"data.path: to try clients with data of their own on one machine, give a folder with one folder per "
            f"client, got {root or 'nothing'}; set data.path"
        )
    owners: dict[str, str | None] = {p.name: str(p) for p in sorted(root.iterdir()) if p.is_dir() and p.name[0] != "."}
    if not owners or clients not in (None, len(owners)):
        raise ConfigError(
            f"data.path: {root} holds the folders of {len(owners)} clients, not {clients or 'one or more'}"
        )
    return owners


def _folder(config: Config) -> Path:
    return Path(config.run.out) / f"{run_name(config)}-federation"


def _options(
    data: str | Path | None,
    device: str,
    plugins: Iterable[str | Path],
    model: Path | None = None,
    **numbers: int | None,
) -> dict[str, Any]:
    """Return what a client's process is told; what is not given is left to its defaults."""
    places = {"data": data, "model": model}
    place = {name: str(Path(path).expanduser().absolute()) for name, path in places.items() if path is not None}
    given = {name: number for name, number in numbers.items() if number is not None}
    files = [str(plugin).partition(PIN)[0] for plugin in plugins]
    return {"device": device, "plugins": ":".join(files), **place, **given}


def _policy(path: Path | None) -> dict[str, str]:
    """Return the option of a client's policy; a mistake in it is said here, and not in a log."""
    if path is None:
        return {}
    from fedfeat.engines.flower.policy import read_policy

    read_policy(path)
    return {"policy": str(path.absolute())}


def _watch(server: Any, run: Any) -> None:
    progress = FederationProgress(console)
    try:
        server.run(run, (progress,))
    finally:
        progress.close()
    write_run_report(run.path)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Treat a service's stop signal like Ctrl-C, and end everything that was started."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        console.print("stopped; the same command continues from where it stopped", style="bold")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


class FederationProgress(RunProgress):
    """Says after every round who replied, how long it took and what was sent."""

    def _joined(self, event: dict[str, Any]) -> None:
        self.console.print(f"{event['name']} takes part as client {event['client']}", style="dim")

    def _warning(self, event: dict[str, Any]) -> None:
        self.console.print(event["text"], style="yellow", markup=False)

    def _round(self, event: dict[str, Any]) -> None:
        took = ", ".join(f"{k}: {seconds:.1f} s" for k, seconds in event.get("client_seconds", {}).items())
        sent = f"{event['bytes_up'] / 1e6:.1f} MB up, {event['bytes_down'] / 1e6:.1f} MB down"
        losses = " ".join(f"{k} {v:.3f}" for k, v in event["losses"].items() if k != "first_epoch")
        self.console.print(
            f"task {event['task']}/{self.tasks} round {event['round']}/{self.rounds}: "
            f"{event['replied']} of {event['clients']} clients in {event['seconds']:.1f} s ({took}), {sent}, {losses}"
        )
        if "discarded" in event:
            self.console.print(f"  thrown away, the model stays as it was: {event['discarded']}", style="yellow")
        for fate in ("failed", "missing"):
            for client, reason in event[fate].items():
                self.console.print(f"  client {client} {fate}: {reason}", style="yellow")
