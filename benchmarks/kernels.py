"""Where the time of a training step goes on an NVIDIA GPU, as a table of kernels.

    PYTHONPATH=src python benchmarks/kernels.py --methods replay+etf,replay+etf+balanced+distil --set data.trivial=0.5

Rounds of the second task of CIFAR-100 in five tasks are run under PyTorch's profiler. Times are of kernels, in
microseconds for each trained image. Several clients train at once, so kernels overlap and their sum is larger than the
time of a round. What a part adds is the difference between two methods.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.profiler import ProfilerActivity, profile

from fedfeat.config.config import load_config
from fedfeat.federation.progress import Progress
from fedfeat.report.tables import markdown_table
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder

# The first pattern that a kernel's name matches says what it is.
KINDS = (
    ("weights of convolutions, backward", r"wgrad"),
    ("images of convolutions, backward", r"dgrad"),
    ("convolutions and matrix products", r"conv|gemm|cutlass|xmma|fprop|sm90_|sm80_|nvjet"),
    ("normalisation, shortcut and ReLU", r"_normalise|_moments|_join|_gradients_of_parts|_descend|batch_norm"),
    ("SGD", r"sgd|descend"),
    ("augmentation", r"_augment|_trivial"),
    ("copies and casts", r"copy|Memcpy|Memset|cast"),
    ("other", r""),
)


def kind_of(kernel: str) -> str:
    """Return what a kernel does, by its name."""
    return next(kind for kind, pattern in KINDS if re.search(pattern, kernel, re.IGNORECASE))


def per_image(kernels: Iterable[tuple[str, float]], images: int) -> dict[str, float]:
    """Return microseconds per image of each kind of kernel, from names and microseconds."""
    sums = dict.fromkeys((kind for kind, _ in KINDS), 0.0)
    for name, microseconds in kernels:
        sums[kind_of(name)] += microseconds / images
    return sums


class _Enough(Exception):
    """Ends a run whose kernels were seen."""


class KernelWatch:
    """Listens to a run: skips the first rounds of a task, profiles the next ones and ends the run."""

    def __init__(self, task: int, skipped: int, rounds: int) -> None:
        self.task, self.skipped, self.rounds = task, skipped, rounds
        self.profiler = profile(activities=[ProfilerActivity.CUDA])
        self.images, self.seconds = 0, 0.0

    def __call__(self, event: dict[str, Any]) -> None:
        """Take one event of the run."""
        if event["event"] != "round" or event["task"] != self.task:
            return
        if event["round"] > self.skipped:
            self.images += 2 * event["samples"]  # two local epochs
            self.seconds += event["seconds"]
        if event["round"] == self.skipped:
            self.profiler.start()
        elif event["round"] == self.skipped + self.rounds:
            torch.cuda.synchronize()
            self.profiler.stop()
            raise _Enough


def profiled(
    method: str, rounds: int, settings: Sequence[str] = (), skipped: int = 3, *, autotune: bool = False
) -> KernelWatch:
    """Run a method up to some rounds of its second task, and return what was seen."""
    changes = [f"method={method}", "engine.name=cuda", "engine.device=cuda", "engine.precision=bf16"]
    config = load_config(
        Path("cifar100-5"), [*settings, *changes, f"train.rounds={skipped + rounds}", "run.keep_models=false"]
    )
    watch = KernelWatch(2, skipped, rounds)
    experiment = Experiment(config)
    torch.backends.cudnn.benchmark = autotune  # before the first convolution: what is chosen for a shape stays
    with tempfile.TemporaryDirectory() as folder, suppress(_Enough):
        experiment.run(RunFolder.create(Path(folder) / "run", config, {}), Progress(), (watch,))
    return watch


def main(
    methods: Annotated[str, typer.Option(help="comma-separated methods")] = "replay+etf,replay+etf+balanced+distil",
    rounds: Annotated[int, typer.Option(min=1, help="rounds that are profiled")] = 3,
    names: Annotated[int, typer.Option(min=0, help="kernels that are listed by name, the longest first")] = 12,
    set: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="settings of the runs")] = None,
    autotune: Annotated[bool, typer.Option("--autotune", help="let cuDNN time its reproducible algorithms")] = False,
) -> None:
    """Print where the time goes."""
    if not torch.cuda.is_available():
        raise SystemExit("kernels: there is no NVIDIA GPU here; benchmarks/loop.py measures on a CPU")
    columns: dict[str, dict[str, float]] = {}
    for method in methods.split(","):
        watch = profiled(method, rounds, set or (), autotune=autotune)
        kernels = [(e.key, e.self_device_time_total) for e in watch.profiler.key_averages()]
        columns[method] = per_image(kernels, watch.images)
        print(f"\n{method}: {watch.images / watch.seconds:,.0f} images/s under the profiler")
        for name, total in sorted(kernels, key=lambda kernel: -kernel[1])[:names]:
            print(f"{total / watch.images:8.3f} us/image  {kind_of(name):36s} {name[:90]}")
    rows = [[kind, *(f"{column[kind]:.2f}" for column in columns.values())] for kind, _ in KINDS]
    rows.append(["sum", *(f"{sum(column.values()):.2f}" for column in columns.values())])
    print(f"\n{markdown_table(['microseconds per image', *columns], rows, 1)}")


if __name__ == "__main__":
    typer.run(main)
