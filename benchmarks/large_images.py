"""A data set that is larger than the memory: written as JPEG, decoded once, fed batch by batch, trained on.

    PYTHONPATH=src python benchmarks/large_images.py --folder /a/disk/with/room

100,000 images of side 224 take 15 GB of pixels on disk. Memory is limited by the operating system (RLIMIT_DATA: what
cannot be given back to a file), so a copy of all images in memory would end the program.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fedfeat.config.config import make_config
from fedfeat.data import Dataset, DataSettings, fingerprint, load_dataset
from fedfeat.data.augment import DeviceImages
from fedfeat.runs.experiment import start


def write_images(folder: Path, images: int, classes: int, side: int, distinct: int | None = None) -> None:
    """Write JPEGs of several sizes in ImageNet's layout, and a hundredth as many to validate on; some may be alike."""
    rng = np.random.default_rng(0)
    made = [picture(rng, side) for _ in range(distinct)] if distinct else None
    for split, count in (("train", images), ("val", max(images // 100, 2 * classes))):
        for number in range(count):
            of_class = folder / split / f"class{number % classes:04d}"
            if number < classes:
                of_class.mkdir(parents=True)
            file = of_class / f"{number:07d}.JPEG"
            file.write_bytes(picture(rng, side) if made is None else made[number % len(made)])


def picture(rng: np.random.Generator, side: int) -> bytes:
    """Return a smooth picture as JPEG; its sides are up to a quarter longer than asked for."""
    width, height = (int(n) for n in rng.integers(side, side + side // 4, 2))
    coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def load(folder: Path, side: int) -> Dataset:
    return load_dataset(DataSettings(name="folder", path=str(folder), image_size=side))


def feed(dataset: Dataset, images: int | None = None, batch: int = 64) -> float:
    """Bring training images to the device in random order, batch by batch; return their mean value."""
    fed = DeviceImages(
        dataset.train_images,
        dataset.train_labels,
        mean=dataset.mean,
        std=dataset.std,
        augmentation=dataset.augmentation,
        device=torch.device("cpu"),
    )
    order = torch.from_numpy(np.random.default_rng(1).permutation(len(fed))[:images])
    parts = [float(fed.plain(rows).mean()) for rows in torch.split(order, batch)]
    return sum(parts) / len(parts)


def train(folder: Path, side: int, out: Path, clients: int = 100) -> dict[str, Any]:
    """Run five tasks in which five clients of many train once on what they hold."""
    table = {
        "method": "finetune",
        "data": {"name": "folder", "path": str(folder), "image_size": side},
        "scenario": {"tasks": 5, "clients": clients, "participation": min(5, clients), "partition": "iid"},
        "train": {"rounds": 1, "local_epochs": 1, "batch": 32},
        "model": {"name": "small-cnn", "width": 8},
        "engine": {"device": "cpu"},
    }
    return start(make_config(table), out)


def limit_memory(extra: int | None = None, total: int | None = None) -> None:
    """Let the operating system refuse memory: ``extra`` bytes more than now, or ``total`` bytes."""
    status = Path("/proc/self/status").read_text()
    now = 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData"))
    most = now + extra if extra is not None else total
    assert most is not None
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def measure(name: str, work: Callable[[], Any], rows: list[dict[str, Any]]) -> Any:
    started = time.perf_counter()
    result = work()
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows.append({"step": name, "seconds": round(time.perf_counter() - started, 1), "peak_bytes_so_far": peak})
    print(f"{name:<28}{rows[-1]['seconds']:>9.1f} s   at most {peak / 1e9:.2f} GB in use so far", flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="new folder for images, pixels and the run")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--limit-gb", type=float, default=8.0)
    parser.add_argument("--out", type=Path, help="file for the results as JSON")
    parser.add_argument("--keep", action="store_true", help="do not delete the folder afterwards")
    options = parser.parse_args()
    limit_memory(total=int(options.limit_gb * 1e9))
    photos, rows = options.folder / "photos", list[dict[str, Any]]()
    os.environ["FEDFEAT_HOME"] = str(options.folder / "home")
    options.folder.mkdir(parents=True)
    try:
        measure("write JPEGs", lambda: write_images(photos, options.images, options.classes, options.side), rows)
        dataset = measure("decode once", lambda: load(photos, options.side), rows)
        dataset = measure("open again", lambda: load(photos, options.side), rows)
        sha256 = measure("fingerprint", lambda: fingerprint(dataset), rows)
        measure("feed all, random order", lambda: feed(dataset), rows)
        result = measure("five tasks", lambda: train(photos, options.side, options.folder / "run"), rows)
        about = {
            "images": len(dataset.train_labels) + len(dataset.test_labels),
            "bytes_of_pixels": dataset.train_images.nbytes + dataset.test_images.nbytes,
            "limit_bytes": int(options.limit_gb * 1e9),
            "trained": result["images_trained"],
            "sha256": sha256,
            "machine": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
            "steps": rows,
        }
        print(json.dumps(about, indent=2))
        if options.out:
            options.out.write_text(json.dumps(about, indent=2) + "\n")
    finally:
        if not options.keep:
            shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
