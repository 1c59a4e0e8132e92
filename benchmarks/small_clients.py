"""Many small clients: rounds per second of a plain loop, of our clients one by one, and of our vectorised clients.

1,000 clients of 50 images are registered, 50 take part in a round, with the small CNN and batches of 10, on random
images. All ways train the same clients on the same draws from the same weights, and take turns in one process; the
models that a round ends with are compared. Runs without the packages of the command line:

    PYTHONPATH=src python benchmarks/small_clients.py --device cuda
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bare import BareLoop, State
from fedfeat.core.payload import Payload
from fedfeat.data import Dataset
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.engines.stack import Convolutions
from fedfeat.engines.vectorised import VectorisedClients
from fedfeat.federation.average import average
from fedfeat.models import as_vector
from fedfeat.models.backbones import SmallCNN
from rounds import CIFAR_AUGMENTATION, SEED, equal_parts, random_images, settings
from timing import Seconds, hardware, slug, take_turns, versions

RESULTS = Path(__file__).parent / "results"
IMAGES, BATCH, EPOCHS = 50, 10, 2
CHANNELS = {8: 1, 16: 1, 32: 3}  # by the images' side
# Largest difference of the averaged weights, relative to what a round changes. Training amplifies rounding now and
# then: one or two of fifty clients end some percent of their way elsewhere, see docs/engines.md.
TOLERANCE = 2e-2
PLAIN, ALONE = "plain loop", "one by one"


class PlainLoop(BareLoop):
    """Clients one after another in bare PyTorch, in eager mode; those of a round, not all."""

    def __init__(self, dataset: Dataset, engine: InProcessEngine) -> None:
        scenario = engine.scenario
        clients = [scenario.samples(0, k) for k in range(scenario.num_clients)]
        super().__init__(dataset, clients, engine.config.train, SEED, engine.device)
        backbone = SmallCNN(dataset.image_shape[2])
        classifier = nn.Linear(backbone.feature_dim, dataset.num_classes)
        self.model = nn.Sequential(backbone, classifier).to(engine.device)
        self.weights: State = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.start_from(engine.model.named_values())
        self.names = list(self.rename(engine.model.named_values()))

    def averaged(self, participants: list[int], round: int) -> Tensor:
        """Do a round and return the averaged model as one vector."""
        self.round = round
        total: Tensor | None = None
        for client in participants:
            state = self.train_client(client)
            vector = as_vector([state[name] for name in self.names])  # the layout of our models, less their gap
            total = vector.clone() if total is None else total.add_(vector)
        assert total is not None
        return total.div_(len(participants))


class SmallClients:
    """The ways to do a round; each call of a way does the next one, and all start from the same weights."""

    def __init__(self, registered: int, participants: int, side: int, device: str, precision: str) -> None:
        augmentation = CIFAR_AUGMENTATION if side == 32 else None
        dataset = random_images(side, CHANNELS[side], registered * IMAGES, augmentation)
        scenario = {"tasks": 1, "clients": registered, "participation": participants, "class_order": "natural"}

        threads = 1 if device == "cpu" else 0  # so small a network is no faster with more

        def engine(vectorised: int) -> InProcessEngine:
            tables = {
                "scenario": scenario,
                "model": {"name": "small-cnn"},
                "engine": {"device": device, "precision": precision, "vectorised": vectorised, "threads": threads},
            }
            config = settings("finetune", batch=BATCH, threads=threads, device=device, epochs=EPOCHS, **tables)
            return InProcessEngine(config, dataset, equal_parts(config, dataset, [IMAGES]), config.build_method())

        self.engine, self.alone = engine(participants), engine(1)
        self.start = self.engine.begin_task(0)
        self.alone.begin_task(0)
        self.plain = PlainLoop(dataset, self.engine)
        self.ends: dict[str, list[Tensor]] = {}

    def plain_round(self, round: int) -> Tensor:
        """Do a round in bare PyTorch."""
        return self.plain.averaged([int(k) for k in self.engine.scenario.participants(0, round)], round)

    def round_one_by_one(self, round: int) -> Tensor:
        """Do a round as the in-process engine does without stacking."""
        self.alone.round = round
        return self._averaged(self.alone.ask("train", self.requests(round)))

    def round_vectorised(self, round: int, way: VectorisedClients) -> Tensor:
        """Do a round with all participants in one stack."""
        return self._averaged(way.train(self.requests(round)))

    def requests(self, round: int) -> dict[int, Payload]:
        """Return what the participants of a round are asked with."""
        self.engine.round = round
        return {int(k): {"weights": self.start} for k in self.engine.scenario.participants(0, round)}

    def _averaged(self, replies: Any) -> Tensor:
        found = average(replies, "uniform").weights
        assert found is not None
        return found

    def timed(self, name: str, work: Callable[[int], Tensor]) -> Callable[[], Seconds]:
        """Return a way as a function without arguments that does its next round and returns the time."""
        ends = self.ends.setdefault(name, [])
        device = self.engine.device

        def once() -> Seconds:
            started, cpu = time.perf_counter(), time.process_time()
            ends.append(work(len(ends)))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return Seconds(time.perf_counter() - started, time.process_time() - cpu)

        return once

    def apart(self, name: str) -> float:
        """Return how far a way ended from the plain loop, relative to what a round changes, at worst."""
        trained, worst = self.engine.model.num_trainable, 0.0
        for ours, plain in zip(self.ends[name], self.ends[PLAIN], strict=True):
            change = (plain[:trained] - self.start[:trained]).norm()
            worst = max(worst, float((ours[:trained] - plain[:trained]).norm() / change))
        return worst


def measure(side: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time every way on images of one size."""
    clients = SmallClients(arguments.registered, arguments.participants, side, arguments.device, arguments.precision)
    ways: dict[str, Callable[[int], Tensor]] = {PLAIN: clients.plain_round, ALONE: clients.round_one_by_one}
    forms: tuple[Convolutions, ...] = ("grouped", "products")
    stacks = {f"vectorised, {form}": VectorisedClients(clients.engine, form) for form in forms}
    for name, stack in stacks.items():
        ways[name] = lambda round, stack=stack: clients.round_vectorised(round, stack)  # type: ignore[misc]
    # Two rounds come before the clock: captured steps run eagerly in the first, and are captured in the second.
    times = take_turns({n: clients.timed(n, work) for n, work in ways.items()}, arguments.repetitions, warm_up=2)
    step_bytes = {name: stack.step_bytes(clients.requests(0)) for name, stack in stacks.items()}
    plain = [t.wall for t in times[PLAIN]]
    rows = []
    for name, series in times.items():
        wall = [t.wall for t in series]
        rows.append(
            {
                "way": name,
                "rounds_per_second": 1 / statistics.median(wall),
                "images_per_second": arguments.participants * IMAGES * EPOCHS / statistics.median(wall),
                "times_the_plain_loop": statistics.median(p / w for p, w in zip(plain, wall, strict=True)),
                "times_the_plain_loop_of_best": min(plain) / min(wall),
                "times_the_plain_loop_of_cpu": statistics.median(
                    p.cpu / t.cpu for p, t in zip(times[PLAIN], series, strict=True)
                ),
                "step_bytes_per_client": step_bytes.get(name),
                "difference": clients.apart(name),
                "seconds": wall,
            }
        )
    return {"side": side, "channels": CHANNELS[side], "rows": rows}


def record(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure every image size and return all numbers with their circumstances."""
    device, load = torch.device(arguments.device), os.getloadavg()
    found = [measure(side, arguments) for side in arguments.sides]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "hardware": {"name": hardware(device), "device": str(device), "cpus": os.cpu_count()},
        "platform": f"{platform.system()} {platform.machine()}",
        "load_average": {"before": load[0], "after": os.getloadavg()[0]},
        "versions": versions(),
        "settings": {
            "registered": arguments.registered,
            "participants": arguments.participants,
            "images_per_client": IMAGES,
            "batch": BATCH,
            "local_epochs": EPOCHS,
            "model": "small-cnn",
            "precision": arguments.precision,
            "repetitions": arguments.repetitions,
            "tolerance": TOLERANCE if arguments.precision == "fp32" else None,
        },
        "sizes": found,
    }


def show(result: dict[str, Any]) -> None:
    """Print one table per image size."""
    given = result["settings"]
    print(
        f"{result['hardware']['name']}, PyTorch {result['versions']['torch']}, {given['precision']}: "
        f"{given['participants']} of {given['registered']:,} clients with {IMAGES} images, batch {BATCH}"
    )
    for size in result["sizes"]:
        pixels = f"{size['side']}x{size['side']} pixels"
        print(f"\n{pixels:<20} rounds/s   images/s   x plain   x best    x CPU   difference")
        for row in size["rows"]:
            print(
                f"  {row['way']:<18}{row['rounds_per_second']:>9.2f}{row['images_per_second']:>11,.0f}"
                f"{row['times_the_plain_loop']:>10.2f}{row['times_the_plain_loop_of_best']:>9.2f}"
                f"{row['times_the_plain_loop_of_cpu']:>9.2f}"
                f"{row['difference']:>13.0e}"
            )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--sides", type=int, nargs="+", choices=tuple(CHANNELS), default=[8, 32])
    parser.add_argument("--registered", type=int, default=1000)
    parser.add_argument("--participants", type=int, default=50)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result file")
    arguments = parser.parse_args()
    result = record(arguments)
    show(result)
    name = slug(f"{result['hardware']['name']} {arguments.precision}")
    path = arguments.out / f"small-clients-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwritten to {path}")
    tolerance = result["settings"]["tolerance"]
    if tolerance and any(row["difference"] > tolerance for size in result["sizes"] for row in size["rows"]):
        raise SystemExit("the ways did not end with the same model: the ratios mean nothing")


if __name__ == "__main__":
    main()
