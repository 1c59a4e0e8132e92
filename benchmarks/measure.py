"""What is measured: the loop against a bare one, over tasks, and with each part of FEAT."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from bare import BareLoop, State
from rounds import SEED
from sizes import BASELINE, Size
from timing import Row, Seconds, row, take_turns

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
