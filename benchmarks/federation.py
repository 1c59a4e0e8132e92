"""Seconds per round of a real federation on one machine: a 45 MB model, clients as processes of their own.

Training is kept trivial (one batch per client), so what is left is what the distribution costs: Flower's messages,
packing, waiting. Beside it the same run in process.

    python benchmarks/federation.py [--clients 2,5] [--rounds 5] [--modes resident,stock] [--out FILE]
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
from fedfeat.runs import deploy
from fedfeat.runs.experiment import start
from fedfeat.runs.folder import RunFolder, environment

PER_CLIENT, BATCH = 8, 8
Row = dict[str, Any]


def write_images(path: Path, clients: int) -> None:
    """Write noise of CIFAR's shape: two classes, a batch per client."""
    rng = np.random.default_rng(0)
    count = clients * PER_CLIENT
    images = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(count) % 2
    np.savez(path, x=images, y=labels, xt=images[:4], yt=labels[:4])


def settings(data: Path, clients: int, rounds: int) -> Config:
    """Return a run of ResNet-18 (11 million numbers, 45 MB) with almost nothing to train on."""
    return make_config(
        {
            "method": "finetune",
            "data": {"name": "npz", "path": str(data)},
            "scenario": {"tasks": 1, "clients": clients, "partition": "iid", "budget": 2},
            "model": {"name": "resnet18"},
            "train": {"rounds": rounds, "local_epochs": 1, "batch": BATCH},
            "engine": {"device": "cpu", "threads": 1},
            "run": {"checkpoint_seconds": 3600.0},
        }
    )


def in_process(config: Config, folder: Path) -> Row:
    """Run the same rounds in one process."""
    start(config, folder)
    return summary(folder, "in process", config)


def as_processes(config: Config, folder: Path, mode: str) -> Row:
    """Run the rounds with real processes."""
    config = deploy.federated(config)
    run = deploy.prepare_run(config, folder / "run")
    options = {"data": str(config.data.path), "device": "cpu"}
    with ExitStack() as stack:
        server = stack.enter_context(deploy.server(folder / "server"))
        for k in range(config.scenario.clients):
            name = f"client-{k}"
            process = deploy.client(
                folder / name, name, server.address, {**options, "client": k}, stock=mode == "stock"
            )
            stack.enter_context(process)
        server.run(run)
    return summary(folder / "run", mode, config)


def summary(folder: Path, mode: str, config: Config) -> Row:
    """Return the medians of all rounds but the first."""
    rounds = [e for e in RunFolder.open(folder).events() if e["event"] == "round"][1:]
    row: Row = {
        "mode": mode,
        "clients": config.scenario.clients,
        "rounds": len(rounds),
        "seconds_per_round": statistics.median(e["seconds"] for e in rounds),
        "megabytes_up_per_client": rounds[0]["bytes_up"] / config.scenario.clients / 1e6,
    }
    if "time" in rounds[0]:
        row |= {part: statistics.median(e["time"][part] for e in rounds) for part in rounds[0]["time"]}
    return row


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", default="2,5")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--modes", default="in process,resident,stock")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    before = os.getloadavg()[0]
    for clients in map(int, options.clients.split(",")):
        for mode in options.modes.split(","):
            with tempfile.TemporaryDirectory(prefix="fedfeat-bench-") as name:
                folder = Path(name)
                write_images(folder / "noise.npz", clients)
                config = settings(folder / "noise.npz", clients, options.rounds)
                began = time.perf_counter()
                if mode == "in process":
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
    parts = "  ".join(f"{part} {row[part]:6.2f} s" for part in ("training", "waiting", "serialising") if part in row)
    return f"{row['clients']} clients, {row['mode']:<10}  {row['seconds_per_round']:6.2f} s per round  {parts}"


if __name__ == "__main__":
    main()
