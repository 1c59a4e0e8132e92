"""``fedfeat bench gpu``: the engines on one GPU, from a bare loop to a whole run, in one process and one table."""

from __future__ import annotations

import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.config.config import Config, make_config
from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_json
from fedfeat.core.payload import Payload
from fedfeat.data import load_dataset
from fedfeat.data.augment import DeviceImages, crop_and_flip
from fedfeat.data.dataset import Dataset
from fedfeat.data.settings import DataSettings
from fedfeat.engines.cuda.engine import CudaEngine
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.evaluation import count
from fedfeat.federation.progress import Progress
from fedfeat.models import Outputs
from fedfeat.models.backbones import ResNet
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder, environment

FEAT_PARTS = ("replay", "replay+etf", "replay+etf+gsa", "replay+feat")
KERNELS = {"torch": (1, 2, 5, 10), "compiled": (1, 5), "triton": (1, 2, 5, 10)}  # and with how many clients
IMAGES_PER_ROUND = 25_600
IMAGES_TO_AGREE = 2_560
SMALLER_RATES = (1e-5, 1e-4, 1e-3, 1e-2)  # beside the usual one: the smaller, the less roundings are multiplied
Say = Callable[[str], None]


def need_gpu() -> None:
    """Refuse a machine without a GPU, before anything is loaded."""
    if not torch.cuda.is_available():
        raise FedfeatError("bench gpu: there is no NVIDIA GPU here; benchmarks/loop.py measures on a CPU")


@dataclass(frozen=True)
class Row:
    """One measurement: images trained per second, its ratio to the bare loop, and the warm-up that came before."""

    name: str
    images_per_second: float
    warm_up_seconds: float = 0.0
    note: str = ""


class End(NamedTuple):
    """Where a run ends: its first trained weights, its last vector with running statistics, what that predicts."""

    start: Tensor
    vector: Tensor
    predicted: Tensor

    def beside(self, reference: End) -> dict[str, float]:
        """Compare with another run; ``of_the_way`` is the gap of the trained weights over how far they moved."""
        trained = slice(None, len(self.start))
        way = (reference.vector[trained] - reference.start).norm()
        return {
            "distance": float((self.vector - reference.vector).norm() / reference.vector.norm()),
            "of_the_way": float((self.vector[trained] - reference.vector[trained]).norm() / way),
            "same_predictions": float((self.predicted == reference.predicted).float().mean()),
        }


class EagerLoop:
    """The baseline of every ratio: one ResNet-18 in eager PyTorch, bytes on the device, bf16, channels last."""

    def __init__(self, images: DeviceImages, num_classes: int, *, batch: int, bf16: bool) -> None:
        self.images, self.batch, self.bf16 = images, batch, bf16
        backbone = ResNet(images.images.shape[-1])
        self.model = nn.Sequential(backbone, nn.Linear(backbone.feature_dim, num_classes)).to(images.device)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.04, momentum=0.9, weight_decay=1e-5)

    def images_per_second(self, steps: int, warm_up: int = 20) -> float:
        """Return the speed over a number of steps."""
        order = torch.randperm(len(self.images), device=self.images.device)
        batches = [order[i : i + self.batch] for i in range(0, len(order) - self.batch + 1, self.batch)]
        self.model.train()
        for number in range(warm_up):
            self.step(batches[number % len(batches)])
        torch.cuda.synchronize()
        started = time.perf_counter()
        for number in range(steps):
            self.step(batches[number % len(batches)])
        torch.cuda.synchronize()
        return steps * self.batch / (time.perf_counter() - started)

    def step(self, indices: Tensor) -> None:
        """Train on one batch."""
        with torch.autocast("cuda", torch.bfloat16, enabled=self.bf16):
            logits = self.model(self.augmented(indices))
        loss = F.cross_entropy(logits.float(), self.images.labels[indices])
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def augmented(self, indices: Tensor) -> Tensor:
        """Return the batch, cropped, mirrored and normalised on the device."""
        device, padding = self.images.device, 4
        crops = torch.randint(0, 2 * padding + 1, (len(indices), 2), device=device)
        flips = torch.rand(len(indices), device=device) < 0.5
        return self.images.normalise(crop_and_flip(self.images.images[indices], crops, flips, padding).float())


class GpuBench:
    """Measures on one data set; ``rows``, ``costs`` and ``agreement`` fill as it goes."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch: int = 128,
        precision: str = "bf16",
        out: Path | None = None,
        say: Say = print,
    ) -> None:
        self.dataset, self.batch, self.precision = dataset, batch, precision
        self.out, self.say = out, say
        # For rounds of clients of equal size: a number of images that ten clients share without a remainder.
        chosen = np.random.default_rng(0).permutation(len(dataset.train_labels))[:IMAGES_PER_ROUND]
        self.part = replace(
            dataset, train_images=dataset.train_images[chosen], train_labels=dataset.train_labels[chosen]
        )
        self.rows: list[Row] = []
        self.costs: dict[str, float] = {}
        self.agreement: dict[str, dict[str, float]] = {}

    def run(self, *, rounds: int = 4, whole_rounds: int = 20) -> dict[str, Any]:
        """Measure everything and return it with hardware and versions."""
        self.bare()
        self.engine("in process, 5 clients", {"name": "inprocess"}, clients=5, rounds=1)
        for kernels, counts in KERNELS.items():
            for clients in counts:
                name = f"cuda, {clients} client{'s' * (clients > 1)}, {kernels}"
                settings = {"name": "cuda", "replicas": clients, "kernels": kernels}
                self.engine(name, settings, clients=clients, rounds=rounds)
        self.whole(whole_rounds)
        self.parts(rounds)
        self.agree()
        self._keep()
        return self.record()

    def bare(self) -> None:
        """Measure the baseline."""
        engine = Experiment(self.config("finetune", {"name": "inprocess"}, clients=1), self.dataset).engine
        loop = EagerLoop(engine.train_images, self.dataset.num_classes, batch=self.batch, bf16=self.precision == "bf16")
        self._note(Row("bare eager loop, one ResNet-18", loop.images_per_second(steps=200)))

    def engine(self, name: str, engine: dict[str, Any], *, clients: int, rounds: int) -> None:
        """Measure rounds of local training with clients of equal size, after a first round that warms up."""
        config = self.config("finetune", engine, clients=clients)
        runner = Experiment(config, self.part).engine
        weights = runner.begin_task(0)
        seconds = [_one_round(runner, weights, number, clients) for number in range(1 + rounds)]
        trained = config.train.local_epochs * len(self.part.train_labels)
        typical = statistics.median(seconds[1:])
        note = f"replicas: {len(runner.replicas)}" if isinstance(runner, CudaEngine) else ""
        self._note(Row(name, trained / typical, max(seconds[0] - typical, 0.0), note))

    def whole(self, rounds: int) -> None:
        """Measure a run of FEAT_F over two tasks: augmentation, GSA, priors, averaging, selection, evaluation."""
        experiment = Experiment(self._whole_config("fedcbdr+feat", rounds), self.dataset)
        events, seconds = _run(experiment)
        rounds_seconds = [[e["seconds"] for e in events if e["event"] == "round" and e["task"] == t] for t in (1, 2)]
        warm_up = sum(r[0] - statistics.median(r[1:]) for r in rounds_seconds)
        epochs = experiment.config.train.local_epochs
        trained = sum(e["samples"] * epochs for e in events if e["event"] == "round")
        between = seconds - sum(sum(task) for task in rounds_seconds)
        note = f"{between:.2f} s outside of {2 * rounds} rounds"
        self._note(Row("whole run of FEAT_F, 5 skewed clients", trained / (seconds - warm_up), warm_up, note))
        steady = max(r.images_per_second for r in self.rows if r.name.startswith("cuda, 5 clients"))
        self.costs["whole run over steady state"] = self.rows[-1].images_per_second / steady

    def parts(self, rounds: int) -> None:
        """Measure what ETF, GSA and priors add to a round, and what EGC adds to an evaluation."""
        typical = {}
        for method in FEAT_PARTS:
            experiment = Experiment(self._whole_config(method, rounds), self.dataset)
            events, _ = _run(experiment)
            second = [e["seconds"] for e in events if e["event"] == "round" and e["task"] == 2]
            typical[method] = statistics.median(second[1:])
        for before, after in pairwise(FEAT_PARTS):
            part = {"replay+etf": "ETF", "replay+etf+gsa": "GSA", "replay+feat": "priors"}[after]
            self.costs[f"{part}: share of a round"] = typical[after] / typical[before] - 1
        self.costs["ETF, GSA and priors together: share of a round"] = typical[FEAT_PARTS[-1]] / typical["replay"] - 1
        self.costs["EGC: share of an evaluation"] = _cost_of_egc(experiment.engine)

    def agree(self, rounds: int = 3) -> None:
        """Train the same task in full precision in process and on this engine, and compare where they end.

        A ReLU that is undecided by one rounding changes the gradient by far more than that, and large steps multiply
        it. So beside it stands how far the engine in process ends from itself when its first weights move by 1e-7.
        """
        for rate in (*SMALLER_RATES, self.config("replay+feat", {}).train.lr):
            reference = self._end({"name": "inprocess"}, rate, rounds)
            for name, engine, moved in (
                ("cuda", {"name": "cuda"}, 0.0),
                ("in process, moved by 1e-7", {"name": "inprocess"}, 1e-7),
            ):
                self.agreement[f"{name}, lr {rate:g}"] = self._end(engine, rate, rounds, moved).beside(reference)
                self._keep()

    def _end(self, engine: dict[str, Any], lr: float, rounds: int, moved: float = 0.0) -> End:
        """Train one task in full precision and return where it ends."""
        few = slice(None, IMAGES_TO_AGREE)
        part = replace(self.part, train_images=self.part.train_images[few], train_labels=self.part.train_labels[few])
        table = self.config("replay+feat", {**engine, "precision": "fp32"}, clients=5).to_table()
        table["scenario"] |= {"partition": "dirichlet", "beta": 0.5}
        table["train"] |= {"rounds": rounds, "lr": lr, "lr_min": min(lr, table["train"]["lr_min"])}
        experiment, progress = Experiment(make_config(table), part), Progress()
        weights = experiment.engine.model.weights
        noise = torch.randn(weights.shape, generator=torch.Generator().manual_seed(0)).to(weights.device)
        weights.mul_(1 + moved * noise)
        start = weights.clone()
        _run(experiment, progress)
        return End(start, progress.weights.clone(), _predictions(experiment.engine, progress.weights))

    def config(self, method: str, engine: dict[str, Any], **scenario: Any) -> Config:
        """Return one task over all images, spread evenly."""
        return make_config(
            {
                "method": method,
                "data": {"name": "cifar10"},
                "scenario": {"tasks": 1, "partition": "iid", **scenario},
                "model": {"name": "resnet18"},
                "train": {"batch": self.batch},
                "engine": {"device": "cuda", "precision": self.precision, **engine},
                "run": {"checkpoint_seconds": 1e9},
            }
        )

    def _whole_config(self, method: str, rounds: int) -> Config:
        scenario = {"tasks": 2, "clients": 5, "partition": "dirichlet", "beta": 0.5, "budget": 300}
        table = self.config(method, {"name": "cuda"}, **scenario).to_table()
        return make_config({**table, "train": {**table["train"], "rounds": rounds}})

    def record(self) -> dict[str, Any]:
        """Return what was measured, with hardware and versions."""
        bare = self.rows[0].images_per_second
        return {
            "environment": {**environment(), "platform": f"{platform.system()} {platform.machine()}"},
            "images": self.dataset.name,
            "batch": self.batch,
            "precision": self.precision,
            "rows": [{**row.__dict__, "ratio_to_bare": row.images_per_second / bare} for row in self.rows],
            "costs": self.costs,
            "agreement": self.agreement,
        }

    def _keep(self) -> None:
        """Write what there is so far, so that nothing measured is lost."""
        if self.out is not None:
            write_json(self.out, self.record())

    def _note(self, row: Row) -> None:
        self.rows.append(row)
        self._keep()
        self.say(f"{row.name}: {row.images_per_second:,.0f} images/s" + (f" ({row.note})" if row.note else ""))
        torch.cuda.empty_cache()


def table(record: dict[str, Any]) -> str:
    """Return a record as text."""
    lines = [f"{'':44s} {'images/s':>10s} {'to bare':>8s} {'warm-up':>9s}"]
    lines += [
        f"{row['name']:44s} {row['images_per_second']:10,.0f} {row['ratio_to_bare']:7.2f}x "
        f"{row['warm_up_seconds']:7.1f} s"
        for row in record["rows"]
    ]
    lines += [f"{name:56s} {value:7.1%}" for name, value in record["costs"].items()]
    lines += [
        f"fp32, {name:36s} {end['distance']:7.1e} from in process, {end['of_the_way']:6.1%} of the way, "
        f"{end['same_predictions']:.2%} predicted alike"
        for name, end in record["agreement"].items()
    ]
    env = record["environment"]
    return "\n".join([*lines, f"{env['gpu']}, torch {env['torch']}, {record['precision']}, batch {record['batch']}"])


def _one_round(engine: InProcessEngine, weights: Tensor, number: int, clients: int) -> float:
    engine.round = number
    requests: dict[int, Payload] = {k: {"weights": weights} for k in range(clients)}
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in engine.ask("train", requests):
        pass
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _run(experiment: Experiment, progress: Progress | None = None) -> tuple[list[dict[str, Any]], float]:
    events: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", experiment.config, {})
        started = time.perf_counter()
        experiment.run(run, progress or Progress(), (events.append,))
        return events, time.perf_counter() - started


@torch.no_grad()
def _predictions(engine: InProcessEngine, weights: Tensor) -> Tensor:
    """Return the classes that a model sees in the test images."""
    engine.model.load(weights)
    engine.network.eval()
    parts = torch.split(torch.arange(len(engine.test_images), device=engine.device), 512)
    return torch.cat([engine.network(engine.test_images.plain(part)).logits.argmax(dim=1) for part in parts])


@torch.no_grad()
def _cost_of_egc(engine: InProcessEngine, repeats: int = 15) -> float:
    """Return the time of correcting all test images over that of evaluating them without the correction."""
    plain, correct = replace(engine.method, predict=None, variants={}), engine.method.predict
    assert correct is not None, "there is no correction to measure"
    known = Progress(numbers={"prior_head": 0.01, "prior_tail": 0.02}).known
    features = torch.randn(len(engine.test_images), engine.network.head.dim, device=engine.device)
    outputs = Outputs(features, engine.network.head(features))
    correction = _typical(lambda: correct(engine.network, outputs, engine.seen, known), repeats)
    return correction / _typical(lambda: count(engine.network, engine.test_images, engine.seen, plain, known), repeats)


def _typical(work: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of some work on the GPU, after one time that does not count."""
    seconds = []
    for _ in range(1 + repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def main(
    data: Annotated[
        Path | None, typer.Option(help="CIFAR-10 on disk; default is where 'fedfeat data get' puts it")
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16")] = "bf16",
    out: Annotated[Path | None, typer.Option(help="also write the figures, hardware and versions as JSON")] = None,
) -> None:
    """Compare a bare loop, the in-process engine and engine cuda on this GPU: one table, ratios in one run."""
    try:
        need_gpu()
        dataset = load_dataset(DataSettings(name="cifar10", path=str(data) if data else None))
    except FedfeatError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    bench = GpuBench(dataset, precision=precision, out=out, say=lambda line: typer.echo(line, err=True))
    typer.echo(table(bench.run()))


if __name__ == "__main__":
    typer.run(main)
