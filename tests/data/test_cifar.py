from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fedfeat.core.errors import DataError
from fedfeat.data import Augmentation, Dataset, DataSettings, load_dataset
from fedfeat.data.cifar import read_batch

RNG = np.random.default_rng(3)
# Rows are stored as all red, then all green, then all blue values.
TRAIN = RNG.integers(0, 256, (20, 3072), dtype=np.uint8)
TEST = RNG.integers(0, 256, (10, 3072), dtype=np.uint8)


def binary_members(classes: int) -> dict[str, bytes]:
    def records(rows: np.ndarray, start: int) -> bytes:
        labels = (start + np.arange(len(rows))) % classes
        prefix = [np.full(len(rows), 9), labels] if classes == 100 else [labels]
        return np.column_stack([np.stack(prefix, 1).astype(np.uint8), rows]).astype(np.uint8).tobytes()

    if classes == 100:
        return {
            "cifar-100-binary/train.bin": records(TRAIN, 0),
            "cifar-100-binary/test.bin": records(TEST, 50),
        }
    parts = {f"cifar-10-batches-bin/data_batch_{i + 1}.bin": records(TRAIN[4 * i :][:4], 4 * i) for i in range(5)}
    return {
        **parts,
        "cifar-10-batches-bin/test_batch.bin": records(TEST, 0),
        "cifar-10-batches-bin/readme.html": b"x",
    }


def python_members(classes: int, protocol: int = 2) -> dict[str, bytes]:
    def batch(rows: np.ndarray, start: int) -> bytes:
        labels = [(start + i) % classes for i in range(len(rows))]
        key = b"fine_labels" if classes == 100 else b"labels"
        return pickle.dumps({b"batch_label": b"some", key: labels, b"data": rows, b"filenames": [b"a.png"]}, protocol)

    if classes == 100:
        return {"cifar-100-python/train": batch(TRAIN, 0), "cifar-100-python/test": batch(TEST, 50)}
    parts = {f"cifar-10-batches-py/data_batch_{i + 1}": batch(TRAIN[4 * i :][:4], 4 * i) for i in range(5)}
    return {**parts, "cifar-10-batches-py/test_batch": batch(TEST, 0)}


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_files(folder: Path, members: dict[str, bytes]) -> Path:
    for name, data in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def load(name: str, path: Path) -> Dataset:
    return load_dataset(DataSettings(name=name, path=str(path)))


def assert_is_the_toy(cifar: Dataset, test_start: int) -> None:
    for images, rows in ((cifar.train_images, TRAIN), (cifar.test_images, TEST)):
        assert images.shape == (len(rows), 32, 32, 3)
        np.testing.assert_array_equal(images[..., 1].reshape(-1, 1024), rows[:, 1024:2048])
    np.testing.assert_array_equal(cifar.train_labels, np.arange(20) % cifar.num_classes)
    np.testing.assert_array_equal(cifar.test_labels, test_start + np.arange(10))


@pytest.mark.parametrize(("name", "classes", "test_start"), [("cifar10", 10, 0), ("cifar100", 100, 50)])
@pytest.mark.parametrize("members", [binary_members, python_members])
@pytest.mark.parametrize("form", ["archive", "folder with archive", "extracted", "extracted itself"])
def test_official_layouts(name: str, classes: int, test_start: int, members, form: str, tmp_path: Path):
    content = members(classes)
    kind = "binary" if members is binary_members else "python"
    if form.startswith("extracted"):
        path = write_files(tmp_path, content)
        path = path / next(iter(content)).split("/")[0] if form.endswith("itself") else path
    else:
        archive = write_tar(tmp_path / f"cifar-{classes}-{kind}.tar.gz", content)
        path = archive if form == "archive" else tmp_path
    assert_is_the_toy(load(name, path), test_start)


def test_named_set_carries_its_constants(tmp_path: Path):
    cifar = load("cifar100", write_files(tmp_path, binary_members(100)))
    assert cifar.mean == (0.5071, 0.4867, 0.4408)
    assert cifar.std == (0.2675, 0.2565, 0.2761)
    assert cifar.augmentation == Augmentation(4, True, 63 / 255)
    assert cifar.class_names[:2] + cifar.class_names[-1:] == ("apple", "aquarium_fish", "worm")


def test_found_in_the_shared_folder_and_in_the_download_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_home: Path
):
    downloads = data_home / "data" / "cifar10"
    downloads.mkdir(parents=True)
    (downloads / "cifar-10-binary.tar.gz.part").write_bytes(b"half")
    with pytest.raises(DataError, match="was not found"):
        load_dataset(DataSettings(name="cifar10"))
    write_tar(downloads / "cifar-10-binary.tar.gz", binary_members(10))
    assert len(load_dataset(DataSettings(name="cifar10")).train_images) == 20
    monkeypatch.setenv("FEDFEAT_DATA", str(tmp_path))
    write_files(tmp_path / "cifar10", {k: v[:3073] for k, v in binary_members(10).items()})
    assert len(load_dataset(DataSettings(name="cifar10")).train_images) == 5


def test_subset_of_classes(tmp_path: Path):
    path = write_files(tmp_path, binary_members(10))
    small = load_dataset(DataSettings(name="cifar10", path=str(path), subset_classes=3), seed=1)
    kept = np.random.RandomState(1).permutation(10)[:3]
    np.testing.assert_array_equal(small.train_images[small.train_labels == 2][0, ..., 0].ravel(), TRAIN[kept[2], :1024])
    assert np.bincount(small.train_labels).tolist() == [2, 2, 2]


def test_damaged_archives(tmp_path: Path):
    whole = write_tar(tmp_path / "whole.tar.gz", binary_members(10))
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    text = tmp_path / "text.tar.gz"
    text.write_text("not an archive")
    for path in (cut, text):
        with pytest.raises(DataError, match=r"damaged or not a tar\.gz.*fedfeat data get cifar10"):
            load("cifar10", path)


def test_missing_and_cut_batches(tmp_path: Path):
    members = binary_members(10)
    members.pop("cifar-10-batches-bin/data_batch_3.bin")
    with pytest.raises(DataError, match=r"expected the files .*data_batch_3\.bin"):
        load("cifar10", write_files(tmp_path / "a", members))
    members = binary_members(10)
    members["cifar-10-batches-bin/test_batch.bin"] = members["cifar-10-batches-bin/test_batch.bin"][:-1]
    with pytest.raises(DataError, match=r"test_batch\.bin: expected records of 3073 bytes, got 30729"):
        load("cifar10", write_tar(tmp_path / "b.tar.gz", members))


def test_label_outside_the_range(tmp_path: Path):
    members = binary_members(10)
    batch = bytearray(members["cifar-10-batches-bin/data_batch_2.bin"])
    batch[3073] = 10
    members["cifar-10-batches-bin/data_batch_2.bin"] = bytes(batch)
    with pytest.raises(DataError, match=r"index 5 is 10, outside 0\.\.9"):
        load("cifar10", write_tar(tmp_path / "c.tar.gz", members))


def test_the_other_cifar_is_not_taken_for_this_one(tmp_path: Path):
    with pytest.raises(DataError, match=r"expected the files train\.bin"):
        load("cifar100", write_tar(tmp_path / "cifar-10-binary.tar.gz", binary_members(10)))


def ran(marker: str) -> None:
    Path(marker).write_text("code was run")


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return ran, (str(self.marker),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int):
    marker = tmp_path / "marker"
    bad = pickle.dumps({b"data": Malicious(marker), b"labels": [0]}, protocol)
    pickle.loads(bad)  # noqa: S301 (shows that the attack works on an unrestricted reader)
    assert marker.exists()
    marker.unlink()
    members = python_members(10)
    members["cifar-10-batches-py/data_batch_4"] = bad
    with pytest.raises(DataError, match=r"data_batch_4: this pickle was refused because it refers to .*ran"):
        load("cifar10", write_tar(tmp_path / "bad.tar.gz", members))
    assert not marker.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n.",
    ],
)
def test_known_attacks_are_refused(data: bytes):
    with pytest.raises(DataError, match="refused because it refers to"):
        read_batch("here", data, "labels")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02garbage",
        pickle.dumps([1, 2], 2),
        pickle.dumps({b"labels": [1]}, 2),
        pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [1]}, 2),
        pickle.dumps({b"data": TRAIN, b"labels": ["cat"]}, 2),
    ],
)
def test_pickles_of_other_content_are_refused(content: bytes):
    with pytest.raises(DataError, match=r"here: (this pickle cannot be read|expected a dict with 'data')"):
        read_batch("here", content, "labels")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_batches_of_every_protocol_and_order(protocol: int, order: str):
    rows = np.asarray(TRAIN, order=order)
    found, labels = read_batch("here", pickle.dumps({"data": rows, "labels": [4, 5]}, protocol), "labels")
    np.testing.assert_array_equal(found, TRAIN)
    assert labels == [4, 5]
