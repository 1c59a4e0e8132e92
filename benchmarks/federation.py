"""Seconds per round of a real federation on one machine: a 45 MB model, clients as processes of their own.

Training is kept trivial (one batch per client), so what is left is what the distribution costs: Flower's messages,
packing, waiting. Beside it the same run in process. Mode ``masked`` is ``resident`` under secure aggregation.

    python benchmarks/federation.py [--clients 2,5] [--rounds 5] [--modes resident,stock,masked] [--out FILE]

Mode ``protected`` is resident clients with keys, TLS, the gateway, the median as the server's rule, and a policy at
every client. Bytes on the loopback interface are those of the whole machine, so measure them where nothing else runs:

    unshare --net sh -c 'ip link set lo up; python benchmarks/federation.py --clients 3 --modes resident,protected'
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.config.config import Config, make_config
from fedfeat.core.files import write_json
from fedfeat.engines.flower import keys
from fedfeat.runs import deploy
from fedfeat.runs.experiment import start
from fedfeat.runs.folder import RunFolder, environment

PER_CLIENT, BATCH = 8, 8
POLICY = 'methods = ["finetune"]\noperations = ["train"]\none_answer = true\nmost_updates = 1000\n'
Row = dict[str, Any]


def write_images(path: Path, clients: int) -> None:
    """Write noise of CIFAR's shape: two classes, a batch per client."""
    rng = np.random.default_rng(0)
    count = clients * PER_CLIENT
    images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(count) % 2
    np.savez(path, x=images, y=labels, xt=images[:4], yt=labels[:4])


def settings(data: Path, clients: int, rounds: int, model: str, *, masked: bool) -> Config:
    """Return a run of ResNet-18 (11 million numbers, 45 MB) or a smaller model with almost nothing to train on."""
    return make_config(
        {
            "method": "finetune",
            "data": {"name": "npz", "path": str(data)},
            "scenario": {"tasks": 1, "clients": clients, "partition": "iid", "budget": 2},
            "model": {"name": model},
            **({"privacy": {"secure_aggregation": True}} if masked else {}),
            "train": {"rounds": rounds, "local_epochs": 1, "batch": BATCH},
            "engine": {"device": "cpu", "threads": 1},
            "run": {"checkpoint_seconds": 3600.0},
        }
    )


def in_process(config: Config, folder: Path) -> Row:
    """Run the same rounds in one process."""
    start(config, folder)
    return summary(folder, "in process masked" if config.privacy.secure_aggregation else "in process", config)


def as_processes(config: Config, folder: Path, mode: str) -> Row:
    """Run the rounds with real processes."""
    config, protected = deploy.federated(config), mode == "protected"
    if protected:
        config = config.model_copy(update={"train": config.train.model_copy(update={"robust": "median"})})
    run = deploy.prepare_run(config, folder / "run")
    options: dict[str, Any] = {"data": str(config.data.path), "device": "cpu"}
    names = [f"client-{k}" for k in range(config.scenario.clients)]
    if protected:
        keys.make_keys(folder / "keys", ["localhost"], names)
        (folder / "policy.toml").write_text(POLICY)
        options["policy"] = str(folder / "policy.toml")
    before = loopback_bytes()
    with ExitStack() as stack:
        known = keys.read_server_keys(folder / "keys" / "server") if protected else None
        server = stack.enter_context(deploy.server(folder / "server", keys=known))
        for k, name in enumerate(names):
            own = keys.read_client_keys(folder / "keys" / "clients" / name) if protected else None
            told, stock = {**options, "client": k}, mode == "stock"
            stack.enter_context(deploy.client(folder / name, name, server.address, told, keys=own, stock=stock))
        server.run(run)
    return {**summary(folder / "run", mode, config), "loopback_megabytes": (loopback_bytes() - before) / 1e6}


def loopback_bytes() -> int:
    """Return how many bytes have crossed the loopback interface."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[0])


def summary(folder: Path, mode: str, config: Config) -> Row:
    """Return the medians of all rounds but the first."""
    rounds = [e for e in RunFolder.open(folder).events() if e["event"] == "round"][1:]
    row: Row = {
        "mode": mode,
        "clients": config.scenario.clients,
        "rounds": len(rounds),
        "seconds_per_round": statistics.median(e["seconds"] for e in rounds),
        "megabytes_up_per_client": rounds[0]["bytes_up"] / config.scenario.clients / 1e6,
        "megabytes_down_per_client": rounds[0]["bytes_down"] / config.scenario.clients / 1e6,
    }
    if "time" in rounds[0]:
        row |= {part: statistics.median(e["time"][part] for e in rounds) for part in rounds[0]["time"]}
    row["model"] = config.model.name
    return row


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", default="2,5")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--modes", default="in process,resident,stock")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    before = os.getloadavg()[0]
    for clients in map(int, options.clients.split(",")):
        for mode in options.modes.split(","):
            with tempfile.TemporaryDirectory(prefix="fedfeat-bench-") as name:
                folder = Path(name)
                write_images(folder / "noise.npz", clients)
                masked = "masked" in mode
                config = settings(folder / "noise.npz", clients, options.rounds, options.model, masked=masked)
                began = time.perf_counter()
                if mode.startswith("in process"):
                    row = in_process(config, folder / "run")
                else:
                    row = as_processes(config, folder, mode)
                rows.append({**row, "whole_run_seconds": time.perf_counter() - began})
            print(_line(rows[-1]), flush=True)
    if options.out:
        load = {"before": before, "after": os.getloadavg()[0]}
        write_json(
            options.out, {"date": time.strftime("%Y-%m-%d"), "environment": environment(), "load": load, "rows": rows}
        )


def _line(row: Row) -> str:
    named = ("training", "waiting", "serialising", "masking")
    parts = "  ".join(f"{part} {row[part]:6.2f} s" for part in named if part in row)
    sent = f"up {row['megabytes_up_per_client']:.4f} MB, down {row['megabytes_down_per_client']:.4f} MB"
    wire = f"  {row['loopback_megabytes']:.0f} MB on the loopback interface" if "loopback_megabytes" in row else ""
    start = f"{row['clients']} clients, {row['mode']:<10}  {row['seconds_per_round']:6.2f} s per round"
    return f"{start}  {sent}  {parts}{wire}"


if __name__ == "__main__":
    main()
