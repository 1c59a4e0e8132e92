"""What each method costs beside finetune: a local step and the end of a task, as ratios in one run.

    python benchmarks/methods.py [--model small-cnn|resnet18] [--methods a,b,...]

Every method trains the same clients on the same digits with the same steps; turns are interleaved and the best of
each is taken. The column "specification" is what the published methods should cost per local step, counted in
forward and backward passes of a large network. Generators are sized as in configs/digits.toml.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from fedfeat.config.config import load_config
from fedfeat.core.payload import Payload
from fedfeat.federation.progress import Progress
from fedfeat.methods import all_methods
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder, environment
from timing import hardware, slug

ROUNDS, TURNS = 3, 3
EXPECTED = {
    "finetune": "1",
    "fedewc": "1.05 to 1.10",
    "fedlwf": "1 + a forward pass",
    "target": "about 2.3",
    "lander": "about 2.3",
    "fedssi": "as fedewc",
    "refed": "1",
    "fedcbdr": "1",
    "fedcbdr+moon": "about 1.7",
}


def measure(method: str, model: str) -> tuple[float, float]:
    """Return the best seconds per local step in the second task, and the seconds of the end of the task before it."""
    overrides = [f"method={method}", "scenario.tasks=2", f"train.rounds={ROUNDS}", f"model.name={model}"]
    experiment = Experiment(load_config(Path("digits"), overrides))
    engine, settings = experiment.engine, experiment.config.train
    steps: list[float] = []

    def train_timed(client: Any, request: Payload) -> Payload:
        started = time.perf_counter()
        reply = train(client, request)
        count = settings.local_epochs * -(-len(client.local_set) // settings.batch)
        if client.task == 1 and count:
            steps.append((time.perf_counter() - started) / count)
        return reply

    train = engine.ops["train"]
    engine.ops["train"] = train_timed
    task_end = 0.0
    for step in experiment.method.task_end_steps():
        original = step.at_task_end

        def at_task_end(edge: Any, original: Any = original) -> None:
            nonlocal task_end
            started = time.perf_counter()
            original(edge)
            task_end += time.perf_counter() - started if edge.task == 0 else 0.0

        step.at_task_end = at_task_end  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        experiment.run(RunFolder.create(Path(folder) / "run", experiment.config, {}), Progress(), ())
    return sorted(steps)[len(steps) // 4], task_end


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="small-cnn", choices=("small-cnn", "resnet18"))
    parser.add_argument("--methods", default="all")
    parser.add_argument("--turns", type=int, default=TURNS)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    machine = slug(hardware(torch.device("cpu")))
    torch.set_num_threads(1)
    trained = [m for m in all_methods() if load_config(Path("digits"), [f"method={m}"]).build_method().trains]
    methods = trained if chosen.methods == "all" else ["finetune", *chosen.methods.split(",")]
    methods = list(dict.fromkeys(["finetune", *methods]))
    best: dict[str, tuple[float, float]] = {}
    for _ in range(chosen.turns):
        for method in methods:
            found = measure(method, chosen.model)
            old = best.get(method, found)
            best[method] = (min(old[0], found[0]), min(old[1], found[1]))
    base_step = best["finetune"][0]
    table = Table("method", "ms per step", "ratio", "specification", "task end s", "in steps", title=chosen.model)
    rows = []
    for method, (step, task_end) in best.items():
        expected = EXPECTED.get(method, "")
        rows.append({"method": method, "step_seconds": step, "ratio": step / base_step, "boundary_seconds": task_end})
        table.add_row(
            method,
            f"{step * 1e3:.2f}",
            f"{step / base_step:.2f}",
            expected,
            f"{task_end:.2f}",
            f"{task_end / base_step:.0f}",
        )
    Console().print(table)
    path = Path(__file__).parent / "results" / f"methods-{chosen.model}-{machine}.json"
    path.parent.mkdir(exist_ok=True)
    record = {"environment": environment(), "turns": chosen.turns, "rounds": ROUNDS, "methods": rows}
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written: {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
