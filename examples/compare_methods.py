"""Three methods on the same splits of the built-in digits, from Python instead of the command line.

Methods with the same seed see the same classes, clients and images, and start from the same weights.

    python examples/compare_methods.py
"""

import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from fedfeat.api import make_config, start

METHODS = ("finetune", "replay", "replay+feat")
SEEDS = (0, 1)
SETTING = {
    "scenario": {"tasks": 5, "clients": 4, "beta": 0.5, "budget": 20},  # 20 images kept per task, by all clients
    "train": {"rounds": 5, "local_epochs": 2, "batch": 32, "lr": 0.05},
    "engine": {"device": "cpu", "threads": 1},
    "finetune": {"softmax": "all"},
    "feat": {"logits": "cosine"},
}


def results_of(method: str, folder: Path) -> list[dict[str, Any]]:
    """Run a method with every seed; all that a run leaves behind would be in its folder."""
    return [
        start(make_config({**SETTING, "method": method, "seed": seed}), folder / f"{method}-{seed}") for seed in SEEDS
    ]


def main() -> None:
    """Print what each method remembers, forgets and sends."""
    print(f"accuracy in percent on all digits seen so far, mean of {len(SEEDS)} seeds\n")
    tasks = "".join(f"{f'task {task}':>9}" for task in range(1, 6))
    print(f"{'method':14}{tasks}{'forgetting':>13}{'MB sent up':>13}")
    with tempfile.TemporaryDirectory() as folder:
        for method in METHODS:
            results = results_of(method, Path(folder))
            curve = [mean(values) for values in zip(*(r["accuracy_after_task"] for r in results), strict=True)]
            forgetting, sent = mean(r["forgetting"] for r in results), mean(r["bytes_up"] for r in results) / 1e6
            print(f"{method:14}" + "".join(f"{a:9.1f}" for a in curve) + f"{forgetting:13.1f}{sent:13.1f}")
    print("\nforgetting: points lost on a task since it was learnt best, mean over the earlier tasks")


if __name__ == "__main__":
    main()
