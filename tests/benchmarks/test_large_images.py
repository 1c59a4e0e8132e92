"""The benchmark of a data set larger than the memory, in small: 150 MB of pixels with 100 MB of memory to spare."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedfeat.data import fingerprint
from large_images import feed, limit_memory, load, train, write_images

pytestmark = [pytest.mark.processes, pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")]
IMAGES, SIDE, SPARE = 1000, 224, 100 << 20


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    write_images(folder / "photos", IMAGES, 10, SIDE, distinct=20)
    return folder


@pytest.fixture(autouse=True)
def data_home(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFEAT_HOME", str(photos / "home"))


def within_limit(work: Callable[[], object]) -> object:
    """Return what work returns in a process whose memory is limited, or the name of its error."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child() -> None:
        limit_memory(extra=SPARE)
        try:
            queue.put(work())
        except (MemoryError, RuntimeError) as error:
            queue.put(type(error).__name__)

    process = context.Process(target=child)
    process.start()
    process.join(120)
    assert process.exitcode == 0
    return queue.get()


def test_decode_and_feed_more_than_there_is_memory_for(photos: Path):
    def decode_and_feed() -> tuple[int, bool, str]:
        dataset = load(photos / "photos", SIDE)
        return dataset.train_images.nbytes, np.isfinite(feed(dataset, 300, batch=8)), fingerprint(dataset)

    size, finite, sha256 = within_limit(decode_and_feed)
    assert size > SPARE
    assert finite
    assert sha256 == fingerprint(load(photos / "photos", SIDE))


def test_the_limit_is_felt_by_a_copy_of_all_images(photos: Path):
    load(photos / "photos", SIDE)
    assert within_limit(lambda: len(np.array(load(photos / "photos", SIDE).train_images))) == "MemoryError"


def test_a_run_on_images_that_stay_on_disk(photos: Path, tmp_path: Path):
    assert train(photos / "photos", SIDE, tmp_path / "run", clients=50)["images_trained"] == 5 * 5 * 200 // 50
