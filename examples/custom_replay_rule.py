"""A replay rule of your own: keep images that lie far apart in feature space (greedy k-centre), class by class.

The file is a plugin, and a script that compares the rule with two that are built in:

    fedfeat run configs/digits.toml --plugin examples/custom_replay_rule.py --set method=far_apart+feat
    python examples/custom_replay_rule.py
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from fedfeat.api import (
    Client,
    Method,
    Op,
    Payload,
    Settings,
    TaskEnd,
    TaskEndStep,
    base,
    make_config,
    number_of,
    start,
    tensor_of,
)


def far_apart_order(features: Tensor, count: int) -> Tensor:
    """Return rows, the most central one first, then each time the one farthest from all chosen so far."""
    chosen = [int((features - features.mean(dim=0)).norm(dim=1).argmin())]
    distance = (features - features[chosen[0]]).norm(dim=1)
    while len(chosen) < min(count, len(features)):
        chosen.append(int(distance.argmax()))
        distance = torch.minimum(distance, (features - features[chosen[-1]]).norm(dim=1))
    return torch.tensor(chosen, device=features.device)


def keep_far_apart(client: Client, request: Payload) -> Payload:
    """Choose on the client, with its share of the budget split evenly over its classes; nothing is sent back."""
    client.model.load(tensor_of(request, "weights"))  # clients share one network: load before use
    if len(client.samples) == 0:
        return {}
    features, labels = torch.cat(list(client.features(client.samples))), client.labels(client.samples)
    classes, quota = labels.unique().tolist(), int(number_of(request, "quota"))
    kept = []
    for place, label in enumerate(classes):
        rows = (labels == label).nonzero().flatten()
        share = quota // len(classes) + (place < quota % len(classes))
        kept.append(client.samples[rows[far_apart_order(features[rows], share)]] if share else rows[:0])
    client.keep(torch.cat(kept))
    return {}


class FarApart(TaskEndStep):
    """The server's side at the end of every task but the last: ask every client that may keep something."""

    def ops(self) -> dict[str, Op]:
        """Clients answer ``keep_far_apart``."""
        return {"keep_far_apart": keep_far_apart}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Send the model that the task ended with, and each client's quota."""
        requests: dict[int, Payload] = {
            client: {"weights": task_end.weights, "quota": task_end.quotas[client]} for client in task_end.keepers
        }
        task_end.exchange.gather("keep_far_apart", requests)


@base("far_apart")
def far_apart(settings: Settings) -> Method:
    """Replay images that lie far apart in feature space."""
    return Method("far_apart", replay=FarApart())


def main() -> None:
    """Compare rules on the built-in digits, each with FEAT on top."""
    setting = {
        "scenario": {"tasks": 5, "clients": 4, "budget": 16},
        "train": {"rounds": 5, "local_epochs": 2, "batch": 32, "lr": 0.05},
        "engine": {"device": "cpu", "threads": 1},
        "feat": {"logits": "cosine"},
    }
    print("digits in 5 tasks, 4 clients, 16 images kept per task; accuracy in percent after the last task\n")
    print(f"{'rule':12}{'seed 0':>10}{'seed 1':>10}")
    with tempfile.TemporaryDirectory() as folder:
        for rule in ("replay", "herding", "far_apart"):
            found = [
                start(make_config({**setting, "method": f"{rule}+feat", "seed": seed}), Path(folder, f"{rule}-{seed}"))
                for seed in (0, 1)
            ]
            print(f"{rule:12}" + "".join(f"{result['final_accuracy']:10.1f}" for result in found))
    print("\nTwo seeds show that the rule works, not that it is better.")


if __name__ == "__main__":
    main()
