"""What methods send, measured: every method runs on digits, and each entry's bytes are held against its formula."""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedfeat.algorithm.sent import Sent
from fedfeat.config.config import Config, make_config
from fedfeat.core.errors import FedfeatError
from fedfeat.data import load_dataset
from fedfeat.data.settings import DataSettings
from fedfeat.federation.progress import Progress
from fedfeat.methods import PARTS, all_methods, parts_of
from fedfeat.methods.calibrate import Calibration
from fedfeat.methods.clip2fl.stand_in import teacher_settings
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from reference_pages.configuration import markdown_row
from reference_pages.pages import BYTES_WORDS, HOME, formula_of

CLIENTS, TASKS, ROUNDS, SEED = 3, 2, 2, 0
POOL_ROUNDS, POOL_BATCH, TEXT = 2, 32, 48
GENERATION = {"rounds": POOL_ROUNDS, "batch": POOL_BATCH, "steps": 2, "warmup": 0, "student_steps": 2}
TABLE: dict[str, Any] = {
    "seed": SEED,
    "data": {"name": "digits"},
    "scenario": {"tasks": TASKS, "clients": CLIENTS, "budget": 150},
    "train": {"rounds": ROUNDS, "local_epochs": 1, "batch": 64, "lr": 0.05},
    "engine": {"device": "cpu", "threads": 1},
    "target": {"batch": 32, "generation": GENERATION},
    "lander": {"batch": 32, "text": {"dim": TEXT}, "generation": GENERATION},
    "fedfsa": {"server_epochs": 2, "text": {"dim": TEXT}},
}
COMMON = ("*/train/weights", "up/train/samples", "up/train/loss.*")

HEADER = f"""\
# What methods send

<!-- Written by `python -m reference_pages --measure`; formulas are what the methods declare. -->

Every method ran on the built-in digits with {CLIENTS} clients, {TASKS} tasks and {ROUNDS} rounds per task. \
Every client took part in
every round. The bytes come from `traffic` in `result.json`, divided by the number of clients. They are those of the
second task wherever it has them; what happens between two tasks belongs to the first.

{BYTES_WORDS}

Each number was held against the value of its formula when this page was written, and equals it; where a formula says
"at most", it does not exceed it. [methods/index.md](methods/index.md#symbols) explains the symbols.

Settings are the defaults, apart from the sizes of what a server makes: {POOL_ROUNDS * POOL_BATCH} synthetic images, \
text features of {TEXT}
dimensions. `clip2fl` ran with random features in place of CLIP's.
"""


class Stand(NamedTuple):
    """What crossed in one task, over all clients, and the values of the symbols in it."""

    traffic: Counter[str]
    symbols: Mapping[str, float]


class Row(NamedTuple):
    """An entry: its formula, what that amounts to, what was measured, in bytes per client and task."""

    entry: str
    sent: Sent
    task: int  # that the bytes are of, from 0
    expected: float
    measured: float


class Measurement(NamedTuple):
    """One method."""

    method: str
    weights: float  # one way, per client and task
    rows: list[Row]


def measured_methods() -> list[str]:
    """Return the methods of the table: every base and composition of the project, and CLIP2FL with a stand-in."""
    own = [m for m in all_methods() if all(p.build.__module__.startswith(HOME) for p in parts_of(m))]
    named = {part.name for method in own for part in parts_of(method)}
    missing = [p.name for p in PARTS.values() if p.name not in named and p.build.__module__.startswith(HOME)]
    return sorted([*own, *(f"fedcbdr+{name}" for name in missing)], key=lambda method: ("+" in method, method))


def measure_all(say: Callable[[str], None]) -> list[Measurement]:
    """Measure every method; ``say`` hears which one is at work."""
    found = []
    for method in measured_methods():
        say(method)
        found.append(measure(method))
    return found


def measure(method: str) -> Measurement:
    """Run a method; an entry without a formula, or one that its formula does not give, is refused."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stands = _run(method, Path(name))
    sends = [sent for part in parts_of(method) for sent in part.sends]
    entries = dict.fromkeys(e for s in stands for e in s.traffic if not any(fnmatchcase(e, c) for c in COMMON))
    rows = [_row(method, entry, stands, sends) for entry in sorted(entries)]
    again = {row.sent for row in rows if row.task == TASKS - 1}  # such as anchors, which have a name per task
    rows = [row for row in rows if row.task == TASKS - 1 or row.sent not in again]
    return Measurement(method, stands[-1].traffic["up/train/weights"] / CLIENTS, rows)


def communication_page(found: Iterable[Measurement]) -> str:
    """Return the page."""
    found = list(found)
    summary = [
        "## In sum\n",
        f"| method | weights in {ROUNDS} rounds, each way | beyond them, up | beyond them, down |",
        "|---|---:|---:|---:|",
        *map(summary_row, found),
    ]
    entries = [
        "\n## Entry by entry\n",
        "A composition sends what its base sends, and what is listed for it here.\n",
        "| method | entry | formula | value | measured |",
        "|---|---|---|---:|---:|",
        *(line for measurement in found for line in entry_rows(measurement)),
    ]
    return "\n".join([HEADER, *summary, *entries]) + "\n"


def summary_row(measurement: Measurement) -> str:
    """Return a method's line of the first table."""
    sums = [sum(r.measured for r in measurement.rows if r.entry.startswith(way)) for way in ("up/", "down/")]
    return markdown_row(f"`{measurement.method}`", *(f"{v:,.0f}" for v in (measurement.weights, *sums)))


def entry_rows(measurement: Measurement) -> list[str]:
    """Return a method's lines of the second table, without those of its base."""
    base, *addons = parts_of(measurement.method)
    known = base.sends if addons else ()
    rows = [row for row in measurement.rows if row.sent not in known]
    if not rows:
        return [markdown_row(f"`{measurement.method}`", "nothing more" if addons else "nothing", "", "0", "0")]
    return [
        markdown_row(
            f"`{measurement.method}`",
            f"`{row.entry}`",
            formula_of(row.sent),
            f"{row.expected:,.0f}",
            f"{row.measured:,.0f}",
        )
        for row in rows
    ]


def _run(method: str, folder: Path) -> list[Stand]:
    table = {**TABLE, "method": method}
    if "clip2fl" in method:
        teacher = teacher_settings(folder, load_dataset(DataSettings(name="digits")))
        table["clip2fl"] = teacher.model_dump(by_alias=True, exclude_none=True)
    config = make_config(table)
    experiment, progress = Experiment(config), Progress()
    stands: list[Stand] = []

    def note(event: Mapping[str, Any]) -> None:
        if event["event"] == "task":
            before = sum((s.traffic for s in stands), Counter[str]())
            crossed = Counter(progress.traffic.counts)
            crossed.subtract(before)
            stands.append(Stand(+crossed, _symbols(config, experiment, stands)))

    experiment.run(RunFolder.create(folder / "run", config, {}), progress, (note,))
    return stands


def _symbols(config: Config, experiment: Experiment, earlier: list[Stand]) -> dict[str, float]:
    engine, seen = experiment.engine, experiment.engine.seen
    clients = [engine.client(k) for k in range(CLIENTS)]
    grids = [s for s in experiment.method.task_end if isinstance(s, Calibration)]
    before = earlier[-1].symbols if earlier else {"theta": 0.0, "trained": 0.0}
    return {
        "theta": len(engine.model.vector),
        "trained": engine.model.num_trainable,
        "theta_before": before["theta"],
        "trained_before": before["trained"],
        "R": experiment.method.rounds(config.train.rounds),
        "S": experiment.method.rounds(config.train.rounds),
        "n": sum(len(c.samples) for c in clients) / CLIENTS,
        "h": sum(len(torch.unique(c.labels(c.local_set))) for c in clients) / CLIENTS,
        "C": seen.num_classes,
        "N": seen.num_classes - seen.num_old,
        "d": (dim := engine.network.backbone.feature_dim),
        "triangle": dim * (dim + 1) // 2,
        "t": TEXT,
        "pool": POOL_ROUNDS * POOL_BATCH,
        "pixels": int(engine.train_images.images[0].numel()),
        "G": len(grids[0].gammas) if grids else 0,
        "D": len(grids[0].deltas) if grids else 0,
    }


def _row(method: str, entry: str, stands: list[Stand], sends: list[Sent]) -> Row:
    task, stand = next((t, s) for t, s in reversed(list(enumerate(stands))) if entry in s.traffic)
    sent = next((s for s in sends if fnmatchcase(entry, s.entry)), None)
    if sent is None:
        raise FedfeatError(f"{method} sends {entry}, which none of its parts declares; add it to their sends")
    expected, measured = sent.bytes(stand.symbols), stand.traffic[entry] / CLIENTS
    if abs(expected - measured) > 0.01 and not (sent.at_most and measured < expected):
        raise FedfeatError(
            f"{method}: {entry} has {measured:.2f} bytes per client and task, and {sent.formula} is {expected:.2f}"
        )
    return Row(entry, sent, task, expected, measured)
