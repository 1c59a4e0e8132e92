"""How fast the loop is, as ratios measured in one run: ``python benchmarks/loop.py [--quick]``.

``--registered 1000000`` measures nothing but what so many registered clients cost.

Compared variants take turns, so a busy machine slows both. ``ratio`` is the median over turns of wall time; beside it
stand the ratio of the best times and the median ratio of processor time. Where they disagree, the machine was busy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bare import BareLoop, State
from registered import registered
from rounds import BASELINE, SEED, Size, resnet, small, small_noise
from timing import Row, Seconds, hardware, row, slug, take_turns, versions

RESULTS = Path(__file__).parent / "results"
# Largest difference of the trained numbers, relative to what a round changes. The CPU gives the same bits; forgetting
# the weight decay (1e-5) would show as 4e-4. A GPU adds in any order, and steps amplify rounding.
TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}
FEAT_PARTS = ("replay+etf", "replay+etf+gsa", "replay+etf+egc", "replay+feat")


def against_bare(size: Size) -> tuple[Row, dict[str, Any]]:
    """Time our loop and a bare one on the same batches, and check that both end in the same model."""
    torch.set_num_threads(size.threads)
    ours = size.rounds(BASELINE, tasks=1)
    scenario, config = ours.experiment.scenario, ours.experiment.config
    clients = [scenario.samples(0, k) for k in range(size.clients)]
    bare = BareLoop(size.dataset, clients, config.train, SEED, ours.experiment.engine.device)
    models, bare_models = [ours.initial], []

    def our_round() -> Seconds:
        seconds = ours()
        models.append({name: value.clone() for name, value in ours.named_weights().items()})
        return seconds

    def bare_round() -> Seconds:
        bare.start_from(models[bare.round])  # rounding errors of earlier rounds would only grow
        seconds = bare()
        bare_models.append(bare.weights)
        return seconds

    times = take_turns({"ours": our_round, "bare": bare_round}, size.repetitions)
    apart = [_difference(*ends) for ends in zip(models, models[1:], bare_models, strict=False)]
    tolerance = TOLERANCE.get(size.device, 2e-2)
    same = {
        "rounds": len(apart),
        "median_difference": statistics.median(apart),
        "worst_difference": max(apart),
        "tolerance": tolerance,
        "passed": max(apart) <= tolerance,
    }
    names = (f"{size.name}, {size.data}", "bare loop")
    result = row("our loop against a bare one", names, (times["ours"], times["bare"]), target=1.05)
    return result, same


def over_tasks(size: Size, method: str, tasks: int = 5) -> Row:
    """Time rounds of the last task against rounds of the first, on equally many samples."""
    torch.set_num_threads(size.threads)
    times = take_turns(
        {"first": size.rounds(method, tasks), "last": size.rounds(method, tasks, task=tasks)}, size.repetitions
    )
    names = (f"{method}, task {tasks}, a quarter exemplars", "task 1")
    return row("replay costs nothing but its samples", names, (times["last"], times["first"]), target=1.05)


def feat_parts(size: Size, parts: tuple[str, ...] = FEAT_PARTS) -> list[Row]:
    """Time rounds of task 2 with each part of FEAT against finetune on as many samples."""
    torch.set_num_threads(size.threads)
    times = take_turns({m: size.rounds(m, tasks=2, task=2) for m in (BASELINE, *parts)}, size.repetitions, 0)
    steps = size.clients * size.epochs * -(-size.samples // size.batch)
    return [
        row(
            f"parts of FEAT, {size.name}",
            (method, BASELINE),
            (times[method], times[BASELINE]),
            unit="ms per step",
            scale=1e3 / steps,
        )
        for method in parts
    ]


def _difference(start: State, end: State, bare_end: State) -> float:
    """Return how far apart two models ended, relative to how far a round took them; running statistics apart."""
    start, end = BareLoop.rename(start), BareLoop.rename(end)
    running = [k for k in end if "running" in k]
    groups = (running, [k for k in end if k not in running])
    return max(_norm(bare_end, end, group) / _norm(end, start, group) for group in groups)


def _norm(a: State, b: State, names: list[str]) -> float:
    return float(torch.cat([(a[k] - b[k]).flatten() for k in names]).norm())


def run(device: torch.device, quick: bool, console: Console) -> dict[str, Any]:
    """Measure everything and return all numbers."""
    kind = device.type
    digits, noise, photos = (make(kind, quick) for make in (small, small_noise, resnet))
    rows: list[Row] = []
    same: dict[str, Any] = {}
    for size in (digits, photos):
        console.print(f"our loop and a bare one, {size.name} on {size.data} ...", style="dim")
        found, same[size.name] = against_bare(size)
        rows.append(found)
    console.print("first and last task ...", style="dim")
    rows += [over_tasks(noise, method) for method in ("replay", "fedcbdr")]
    console.print("few and many registered clients ...", style="dim")
    found_rows, registration = registered(kind, *((300, 2) if quick else (10_000, 41)))
    rows += found_rows
    lone = replace(photos, clients=1)
    for size, parts in ((noise, FEAT_PARTS), (lone, FEAT_PARTS[-1:] if quick else FEAT_PARTS)):
        console.print(f"parts of FEAT, {size.name} ...", style="dim")
        rows += feat_parts(size, parts)
    return {
        "settings": {
            "against_bare": [digits.describe(), photos.describe()],
            "over_tasks": noise.describe(),
            "registered": registration,
            "feat_parts": [noise.describe(), lone.describe()],
        },
        "same_model": same,
        "rows": [r.to_json() for r in rows],
    }


def many_registered(device: torch.device, clients: int) -> dict[str, Any]:
    """Measure ten participants of so many registered clients and of ten, and nothing else."""
    rows, settings = registered(device.type, clients, target=1.1)
    return {"settings": {"registered": settings}, "same_model": {}, "rows": [r.to_json() for r in rows]}


def with_circumstances(device: torch.device, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure, and return all numbers with where and when they were measured."""
    name, started, load = hardware(device), time.time(), os.getloadavg()
    measured = measure()
    return {
        "date": time.strftime("%Y-%m-%d", time.localtime(started)),
        "seconds": time.time() - started,
        "hardware": {
            "name": name,
            "device": str(device),
            "cpus": os.cpu_count(),
            "platform": f"{platform.system()} {platform.machine()}",
        },
        "load_average": {"before": load[0], "after": os.getloadavg()[0]},
        "versions": versions(),
        **measured,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the table and what to make of it."""
    title = f"{result['hardware']['name']}, PyTorch {result['versions']['torch']}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("measured", "base", "value", "of base", "unit", "ratio", "of best", "of CPU", "target", "turns"):
        left = column in ("measured", "base", "unit")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    section = ""
    for r in result["rows"]:
        if r["section"] != section:
            section = r["section"]
            table.add_row(f"[bold]{section}[/]")
        ratios = [r["ratio"], r["ratio_of_best"], r["ratio_of_cpu"]]
        missed = r["target"] is not None and min(x for x in ratios if x is not None) > r["target"]
        table.add_row(
            f"  {r['variant']}",
            r["base"],
            f"{r['value']:.4g}",
            f"{r['base_value']:.4g}",
            r["unit"],
            f"[{'red' if missed else 'bold'}]{r['ratio']:.3f}[/]",
            *("" if x is None else f"{x:.3f}" for x in ratios[1:]),
            "" if r["target"] is None else f"{r['target']:.2f}",
            str(len(r["values"])),
        )
    console.print(table)
    for name, same in result["same_model"].items():
        word = "agree" if same["passed"] else "[red]DISAGREE[/]"
        apart = (
            f"by {same['worst_difference']:.0e} of what a round changes" if same["worst_difference"] else "by nothing"
        )
        console.print(
            f"{name}: our averaged weights and the bare loop's {word} after each of {same['rounds']} rounds: "
            f"they differ {apart}, at most"
        )
    load = result["load_average"]
    console.print(
        f"load average {load['before']:.1f} before and {load['after']:.1f} after on "
        f"{result['hardware']['cpus']} CPUs; {result['seconds']:.0f} s"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: does it run, not how fast")
    parser.add_argument("--registered", type=int, help="only ten participants of so many registered clients")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result file")
    arguments = parser.parse_args()
    console = Console()
    console.width = max(console.width, 140)
    device, clients = torch.device(arguments.device), arguments.registered
    measure = partial(many_registered, device, clients) if clients else partial(run, device, arguments.quick, console)
    result = {"quick": arguments.quick, **with_circumstances(device, measure)}
    show(result, console)
    suffix = f"-registered-{clients}" if clients else "-quick" if arguments.quick else ""
    path = arguments.out / f"loop-{slug(result['hardware']['name'])}{suffix}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"written to {path}")
    if not all(same["passed"] for same in result["same_model"].values()):
        raise SystemExit("the two loops did not do the same work: the ratios mean nothing")


if __name__ == "__main__":
    main()
