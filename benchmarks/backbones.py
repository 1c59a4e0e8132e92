"""Measure what clients with a vision transformer send: all of it, LoRA adapters, or what the classifier needs alone.

    python benchmarks/backbones.py        a ViT-S/16 with random weights, made here and thrown away

Two clients train for one round on the ten digits as one task, so each row is one exchange per client. Bytes depend on
the network, not on its weights or images, which are brought to 32 pixels to save time. docs/models.md has the table.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import NamedTuple

from fedfeat.config.config import load_config
from fedfeat.runs.experiment import start

VIT_S = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
CLIENTS = 2
RUNS = (
    ("finetune", "all"),
    ("finetune", "lora"),
    ("finetune", "nothing"),
    ("fedcbdr+feat", "lora"),
    ("analytic", "nothing"),
)


class Row(NamedTuple):
    """What a client sent and received."""

    method: str
    tune: str
    up: float
    down: float


def save_vit_s(folder: Path) -> Path:
    """Write a ViT-S/16 for images of 224 pixels with random weights."""
    import transformers

    transformers.ViTModel(transformers.ViTConfig(**VIT_S), add_pooling_layer=False).save_pretrained(folder)
    return folder


def measure(folder: Path, method: str, tune: str) -> Row:
    """Run one round and return bytes per client, losses and counts included."""
    changes = [f"method={method}", "seed=0", "scenario.tasks=1", f"scenario.clients={CLIENTS}", "train.rounds=1"]
    changes += ["train.local_epochs=1", "model.name=hf", f"model.path={folder}", f"model.tune={tune}"]
    with tempfile.TemporaryDirectory() as out:
        result = start(load_config(Path("digits"), [*changes, "model.image_size=32"]), Path(out) / "run")
    return Row(method, tune, result["bytes_up"] / CLIENTS, result["bytes_down"] / CLIENTS)


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown; shares are of the first row, both ways together."""
    whole = rows[0].up + rows[0].down
    lines = ["| method | `model.tune` | up (bytes) | down (bytes) | share |", "|---|---|---:|---:|---:|"]
    for row in rows:
        share = whole / (row.up + row.down)
        told = "1" if share == 1 else f"1 / {share:,.0f}"
        lines.append(f"| `{row.method}` | `{row.tune}` | {row.up:,.0f} | {row.down:,.0f} | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place:
        saved = save_vit_s(Path(place))
        print(table([measure(saved, method, tune) for method, tune in RUNS]))
