"""Four streams of images beside the usual one, on the digits: runs, and the tables and pictures of docs/scenarios.md.

    python benchmarks/scenarios.py                    run what is missing in runs/scenarios, then write
    python benchmarks/scenarios.py --workers 2        the same, two runs at a time
    python benchmarks/scenarios.py --kept             write from results/quick/scenarios.json alone

Every run is that of configs/digits.toml with the changes below. Nothing was tuned.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedfeat.api import compose, finish, load_config, load_dataset
from fedfeat.methods import all_methods
from fedfeat.report.figures import PAGE as PAPER
from fedfeat.report.figures import drawing, line_style, save_png
from fedfeat.report.scenario import draw_scenario
from fedfeat.runs.folder import RunFolder
from fedfeat.scenario.build import scenario_of

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "digits.toml"
KEPT = ROOT / "results" / "quick" / "scenarios.json"
PAGE = ROOT / "docs" / "scenarios.md"
PICTURES = ROOT / "docs" / "images"
METHODS = ("fedcbdr+feat", "fedcbdr+etf+balanced+distil", "finetune")
SEEDS = (0, 1, 2)
COMMON = ("fedcbdr.mode=paper",)  # the mode of the file shares the budget by new class, which blurry and lag exclude
STREAMS: Mapping[str, tuple[str, ...]] = {
    "usual": (),
    "blurry": ("scenario.blurry=0.1",),
    "leaves": ('scenario.leaves={"3"=3,"4"=4}',),
    "lag": ('scenario.lag={"3"=1,"4"=2}',),
    "domains": ("scenario.brings=domains", "data.name=digits-domains", "scenario.tasks=4"),
}
MEASURES = ("final_accuracy", "average_incremental_accuracy", "forgetting", "head", "tail")
TABLE = re.compile(r"(?<=\n)(\| scenario \| (method|refused) \|[^\n]*\n\|-[^\n]*\n)((?:\|[^\n]*\n)*)")
Runs = dict[str, dict[str, list[dict[str, Any]]]]  # by stream and method, a record per seed


def measured(out: Path, workers: int) -> Runs:
    """Run all that is not finished yet, and return what the page shows of each run."""
    names = [(stream, method, seed) for stream in STREAMS for method in METHODS for seed in SEEDS]
    configs = [load_config(CONFIG, [*COMMON, *STREAMS[s], f"method={m}", f"seed={seed}"]) for s, m, seed in names]
    found: Runs = {stream: {method: [] for method in METHODS} for stream in STREAMS}
    for (stream, method, seed), outcome in zip(names, finish(configs, out, workers=workers), strict=True):
        result = outcome.result
        if result is None:
            raise SystemExit(f"scenarios.py: {stream}, {method}, seed {seed} failed; see {outcome.path}")
        head, tail = [e for e in RunFolder.open(outcome.path).events() if e["event"] == "task"][-1]["head_tail"]
        record = {name: round(result[name], 4) for name in MEASURES[:3]} | {
            "head": round(head, 4),
            "tail": round(tail, 4),
        }
        after = [round(a, 4) for a in result["accuracy_after_task"]]
        found[stream][method].append({"seed": seed, **record, "accuracy_after_task": after})
    return found


def rows(runs: Runs) -> str:
    """Return mean and deviation of every measure, a stream and a method a row."""
    return "".join(
        f"| {stream} | `{method}` | " + " | ".join(_told(records, name) for name in MEASURES) + " |\n"
        for stream, methods in runs.items()
        for method, records in methods.items()
    )


def _told(records: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [record[name] for record in records]
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"


def refusals() -> str:
    """Return which methods refuse a stream with their defaults, a reason a row."""
    found: dict[tuple[str, str], list[str]] = {}
    for stream in ("blurry", "lag", "domains"):
        for method in all_methods():
            if (reason := compose(method, {}).refusal(stream)) is not None:
                found.setdefault((stream, reason), []).append(f"`{method}`")
    return "".join(f"| {stream} | {', '.join(names)} | {reason} |\n" for (stream, reason), names in found.items())


def rendered(page: str, runs: Runs) -> str:
    """Return the page with its tables as they should be."""
    bodies = {"method": rows(runs), "refused": refusals()}
    return TABLE.sub(lambda match: match[1] + bodies[match[2]], page)


def draw_splits() -> None:
    """Draw who holds what in each stream, as ``fedfeat scenario show`` does."""
    for stream, changes in STREAMS.items():
        config = load_config(CONFIG, [*COMMON, *changes])
        data = load_dataset(config.data, seed=config.seed)
        split, domains = scenario_of(data, config.scenario, config.seed), data.domains.names if data.domains else ()
        if stream != "usual":
            draw_scenario(split, PICTURES / f"scenario-{stream}.png", data.class_names, domains)


def draw(runs: Runs, path: Path) -> None:
    """Draw accuracy after each task, a panel per stream: mean and deviation over seeds."""
    with drawing() as figure_class:
        figure = figure_class(figsize=(10.5, 2.9), layout="constrained")
        axes = figure.subplots(1, len(runs), sharey=True)
        for axis, (stream, methods) in zip(axes, runs.items(), strict=True):
            for index, (method, records) in enumerate(methods.items()):
                curves = np.array([record["accuracy_after_task"] for record in records])
                mean, std = curves.mean(axis=0), curves.std(axis=0, ddof=1)
                tasks, style = np.arange(1, len(mean) + 1), line_style(index)
                axis.plot(tasks, mean, lw=2, ms=5, mec=PAPER, mew=0.7, label=method, zorder=4, **style)
                axis.fill_between(tasks, mean - std, mean + std, color=style["color"], alpha=0.16, lw=0)
            axis.set(title=stream, xlabel="tasks learned", xticks=tasks, ylim=(0, 101.5))
        axes[0].set_ylabel("accuracy so far (%)")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    save_png(figure, path)


def main() -> None:
    """Run, keep, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/scenarios"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kept", action="store_true", help="run nothing")
    options = parser.parse_args()
    if not options.kept:
        KEPT.write_text(json.dumps(measured(options.out, options.workers), indent=1) + "\n")
    runs = json.loads(KEPT.read_text())
    draw(runs, PICTURES / "scenarios.png")
    draw_splits()
    PAGE.write_text(rendered(PAGE.read_text(), runs))


if __name__ == "__main__":
    main()
