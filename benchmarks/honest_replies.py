"""What the screening of replies says to honest clients, and how large their updates are.

    python benchmarks/honest_replies.py --clients 2,5,50 --beta 0.1

Runs the digits in process with every method and looks at each reply as the server of a federation does. Nothing may be
refused. Prints the largest norm of an update in units of its round's median, and of the model that was sent.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedfeat.algorithm.engine import Lost
from fedfeat.config.config import load_config
from fedfeat.core.payload import Payload
from fedfeat.engines.flower.update_norms import oversized, update_sizes
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.federation.loop import Federation
from fedfeat.federation.progress import Progress
from fedfeat.federation.screen import TRAIN, declared_losses, fault_of, odd_ones
from fedfeat.methods import all_methods
from fedfeat.runs.experiment import Experiment

CONFIG = Path(__file__).parents[1] / "configs" / "digits.toml"


class Watched(InProcessEngine):
    """The simulator, with every exchange screened on the way."""

    of_median = of_model = 0.0
    refused: tuple[str, ...] = ()

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload | Lost]]:
        replies: dict[int, Payload] = {}
        sends = {**self.method.sends, **declared_losses(self.method)}
        for client, reply in super().ask(op, requests):
            assert not isinstance(reply, Lost), reply.reason
            # The resident model lends its vector to one client after another.
            replies[client] = {k: v.clone() if k == "weights" else v for k, v in reply.items()}  # type: ignore[union-attr]
            fault = fault_of(op, requests[client], reply, sends, self.reply_sizes(client))
            self.refused += () if fault is None else (f"{op}, client {client}: {fault}",)
        faults = odd_ones(replies, sends)
        if op == TRAIN:
            faults |= oversized(requests, replies, self.model.num_trainable)
            for size in update_sizes(requests, replies, self.model.num_trainable):
                self.of_median, self.of_model = max(self.of_median, size.of_median), max(self.of_model, size.of_model)
        self.refused += tuple(f"{op}, client {k}: {fault}" for k, fault in faults.items())
        yield from replies.items()


def watch(method: str, clients: int, beta: float, rounds: int) -> Watched:
    """Run one method to its end."""
    changes = [f"method={method}", f"scenario.clients={clients}", f"scenario.beta={beta}", f"train.rounds={rounds}"]
    config = load_config(CONFIG, [*changes, "scenario.min_samples=0", "engine.vectorised=1"])
    experiment = Experiment(config, engine=Watched)
    engine = experiment.engine
    assert isinstance(engine, Watched)
    federation = Federation(config, experiment.scenario, experiment.method, engine, Progress())
    federation.run(lambda event: None, lambda progress: None)
    return engine


def main() -> None:
    """Print a table, and end with an error if an honest reply was refused."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", default="2,5,50")
    parser.add_argument("--methods", default=",".join(all_methods()))
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    refused: list[str] = []
    print("| method | clients | times the median | times the model | refused |\n|---|---:|---:|---:|---:|")
    for method in options.methods.split(","):
        for clients in map(int, options.clients.split(",")):
            seen = watch(method, clients, options.beta, options.rounds)
            row = f"{seen.of_median:.1f} | {seen.of_model:.2f} | {len(seen.refused)}"
            print(f"| `{method}` | {clients} | {row} |", flush=True)
            refused += [f"{method}, {clients} clients: {fault}" for fault in seen.refused]
    if refused:
        raise SystemExit("honest replies were refused:\n" + "\n".join(refused[:20]))


if __name__ == "__main__":
    main()
