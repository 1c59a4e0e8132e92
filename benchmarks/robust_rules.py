"""Robust rules on the digits: one of five clients attacks, and what each rule costs when nobody does.

    python benchmarks/robust_rules.py --out benchmarks/results/robust_rules.json

Attacks on what client 0 sends or trains on: its update times 10 (scaled), its update times -1 (sign), its labels
turned round among the classes of the task (labels). Final accuracies in percent, mean and deviation over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedfeat.algorithm.engine import Lost
from fedfeat.config.config import load_config
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.progress import Progress
from fedfeat.runs.experiment import Experiment

CONFIG = Path(__file__).parents[1] / "configs" / "digits.toml"
RULES = ("none", "median", "trimmed_mean", "krum", "multi_krum", "norm_bounding")
ATTACKS = ("scaled", "sign", "labels", "nobody")
CASES = tuple((attack, beta) for beta in (0.5, 0.1) for attack in ATTACKS)
ATTACKER = 0
FACTORS = {"scaled": 10.0, "sign": -1.0}


class Attacked(InProcessEngine):
    """The simulator with one client that does harm."""

    attack = "nobody"

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        for client, reply in super().ask(op, requests):
            factor = FACTORS.get(self.attack) if client == ATTACKER else None
            if factor is not None and not isinstance(reply, Lost) and "weights" in reply:
                sent = tensor_of(requests[client], "weights")
                reply = {**reply, "weights": sent + factor * (tensor_of(reply, "weights") - sent)}
            yield client, reply

    def turn_labels(self) -> None:
        """Give every image of the attacker the label of another class of its task."""
        labels = self.train_images.labels
        for task, classes in enumerate(self.scenario.task_classes):
            own = self.scenario.samples(task, ATTACKER)
            labels[own] = classes[0] + (labels[own] - classes[0] + 1) % len(classes)


def accuracy(rule: str, attack: str, beta: float, seed: int, rounds: int, method: str) -> float:
    """Run one experiment and return its final accuracy."""
    changes = [f"method={method}", f"seed={seed}", f"scenario.beta={beta}", f"train.rounds={rounds}"]
    config = load_config(CONFIG, [*changes, f"train.robust={rule}", "engine.vectorised=1"])
    experiment = Experiment(config, engine=Attacked)
    engine = experiment.engine
    assert isinstance(engine, Attacked)
    engine.attack = attack
    if attack == "labels":
        engine.turn_labels()
    with tempfile.TemporaryDirectory() as folder:
        run = experiment.new_folder(Path(folder) / "run")
        return float(experiment.run(run, Progress(), ())["final_accuracy"])


def main() -> None:
    """Print a table, and write the numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--method", default="replay+feat")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, list[float]]] = {}
    print("| rule | " + " | ".join(f"{attack}, beta {beta}" for attack, beta in CASES) + " |")
    print("|---|" + "---:|" * len(CASES))
    for rule in RULES:
        cells = []
        for attack, beta in CASES:
            values = []
            for seed in map(int, options.seeds.split(",")):
                try:
                    values.append(accuracy(rule, attack, beta, seed, options.rounds, options.method))
                except Exception as error:  # a run that an attacker ends counts as such
                    print(f"{rule}, {attack}: {type(error).__name__}")
            found.setdefault(rule, {})[f"{attack}, beta {beta}"] = values
            if len(values) > 1:
                cells.append(f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}")
            else:
                cells.append("ended")
        print(f"| `{rule}` | " + " | ".join(cells) + " |", flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
