from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedfeat.core.errors import DataError
from fedfeat.data import DataSettings, cache, fingerprint, images, load_dataset


@pytest.fixture
def own(tmp_path: Path, encode, pixels) -> Path:
    folder = tmp_path / "mine"
    for name in ("a", "b", "c"):
        (folder / name).mkdir(parents=True)
        for i, image in enumerate(pixels(6, 5, 5, 3)):
            (folder / name / f"{i}.png").write_bytes(encode(image))
    return folder


def load(path: Path, seed: int = 0, **options: object):
    return load_dataset(DataSettings(name="folder", path=str(path), **options), seed=seed)


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def fail(*_: object) -> None:
        raise AssertionError("decoded although it is cached")

    return lambda: monkeypatch.setattr(images, "_decode_one", fail)


def entries(home: Path) -> list[Path]:
    return sorted((home / "decoded").iterdir())


def test_second_start_decodes_nothing(own: Path, no_decoding):
    first = load(own)
    no_decoding()
    second = load(own)
    assert isinstance(second.train_images, np.memmap)
    assert not second.train_images.flags.writeable
    assert fingerprint(second) == fingerprint(first)
    assert (second.mean, second.std) == (first.mean, first.std)


def test_the_guard_of_these_tests_can_fail(own: Path, no_decoding):
    no_decoding()
    with pytest.raises(AssertionError, match="although it is cached"):
        load(own)


def test_changed_files_are_decoded_again(own: Path, encode):
    load(own)
    file = own / "a" / "0.png"
    old = file.stat()
    file.write_bytes(encode(np.full((5, 5, 3), 77, np.uint8)))
    os.utime(file, ns=(old.st_atime_ns, old.st_mtime_ns + 1))
    assert (load(own).train_images[0] == 77).all()


def test_another_choice_of_classes_is_another_entry(own: Path, data_home: Path, no_decoding):
    two = load(own, subset_classes=2, seed=1)
    assert len(two.class_names) == 2
    load(own, seed=1)
    assert len(entries(data_home)) == 2
    no_decoding()
    # With all classes kept the seed has no say, so every seed shares the entry.
    load(own, seed=2)


def test_as_many_but_other_classes_are_another_entry(own: Path):
    everything, chosen = load(own), [load(own, subset_classes=1, seed=seed) for seed in range(6)]
    assert len({one.class_names for one in chosen}) > 1
    for one in chosen:
        label = everything.class_names.index(one.class_names[0])
        np.testing.assert_array_equal(one.train_images, everything.train_images[everything.train_labels == label])


@pytest.mark.parametrize("damage", ["cut", "flipped bit", "missing array", "bad json", "labels", "empty folder"])
def test_a_damaged_entry_is_rebuilt(own: Path, data_home: Path, damage: str, no_decoding):
    good = fingerprint(load(own))
    (entry,) = entries(data_home)
    array = entry / "train_images.npy"
    data = bytearray(array.read_bytes())
    if damage == "cut":
        array.write_bytes(data[:-1])
    elif damage == "flipped bit":
        data[-5] ^= 1
        array.write_bytes(data)
    elif damage == "missing array":
        (entry / "test_labels.npy").unlink()
    elif damage == "bad json":
        (entry / "entry.json").write_text("{")
    elif damage == "labels":
        np.save(entry / "train_labels.npy", np.load(entry / "train_labels.npy")[::-1])
    else:
        shutil.rmtree(entry)
        entry.mkdir()
    assert fingerprint(load(own)) == good
    assert entries(data_home) == [entry]
    no_decoding()
    assert fingerprint(load(own)) == good


def test_an_unwritable_cache_is_no_obstacle(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("FEDFEAT_HOME", str(blocked))
    with pytest.warns(UserWarning, match="decoded images are not cached"):
        assert len(load(own).train_images) == 15


def test_a_full_disk_is_no_obstacle_and_leaves_nothing(own: Path, data_home: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.np, "save", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert len(load(own).train_images) == 15
    assert entries(data_home) == []


def test_left_overs_of_a_killed_writer_go_away_when_old(own: Path, data_home: Path):
    old, fresh = data_home / "decoded" / ".writing-old", data_home / "decoded" / ".writing-fresh"
    for folder in (old, fresh):
        folder.mkdir(parents=True)
    long_ago = time.time() - 2 * cache.STALE_SECONDS
    os.utime(old, (long_ago, long_ago))
    load(own)
    assert not old.exists()
    assert fresh.exists()


def _load_in_process(path: Path, barrier, queue) -> None:
    barrier.wait(30)
    queue.put(fingerprint(load(path)))


@pytest.mark.processes
def test_processes_that_start_together(own: Path, data_home: Path):
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_load_in_process, args=(own, barrier, queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    prints = {queue.get(timeout=30) for _ in workers}
    for worker in workers:
        worker.join(30)
    assert prints == {fingerprint(load(own))}
    assert len(entries(data_home)) == 1
    assert json.loads((entries(data_home)[0] / "entry.json").read_text())["crc32"]


def test_a_writer_that_comes_second_keeps_the_first_entry(own: Path, data_home: Path, monkeypatch):
    load(own)
    (entry,) = entries(data_home)
    before = (entry / "entry.json").stat().st_ino
    real = cache._open_entry
    answers = iter([None])
    monkeypatch.setattr(cache, "_open_entry", lambda folder: next(answers, real(folder)))
    load(own)
    assert (entry / "entry.json").stat().st_ino == before
    assert entries(data_home) == [entry]


def test_bad_images_are_not_cached(own: Path, data_home: Path):
    (own / "b" / "2.png").write_bytes(b"bad")
    with pytest.raises(DataError, match=r"2\.png"):
        load(own)
    assert entries(data_home) == []
