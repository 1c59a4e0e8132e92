from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedfeat.core.errors import DataError
from fedfeat.data import Augmentation, Dataset, DataSettings, load_dataset
from fedfeat.data.tiny_imagenet import SUBSET

WNIDS = ["n00000003", "n00000001", "n00000002", "n00000004"]
WORDS = "n00000001\tgoldfish, Carassius auratus\nn00000002\tcrane\nn00000003\tcrane\nn09999999\tother\n"


@pytest.fixture
def tree(encode) -> dict[str, bytes]:
    """Every image is one shade that tells its class and split; one training image is stored grey."""
    files = {
        "wnids.txt": "\n".join(WNIDS).encode(),
        "words.txt": WORDS.encode(),
        "test/images/test_0.JPEG": b"x",
    }
    annotations = []
    for wnid in WNIDS:
        shade = int(wnid[-1]) * 20
        for i in range(3):
            shape = (64, 64) if i == 0 else (64, 64, 3)
            image = encode(np.full(shape, shade, np.uint8), "JPEG", quality=95)
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = image
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"boxes"
        name = f"val_{len(annotations)}.JPEG"
        files[f"val/images/{name}"] = encode(np.full((64, 64, 3), shade + 100, np.uint8), "JPEG", quality=95)
        annotations.append(f"{name}\t{wnid}\t0\t0\t62\t62")
    files["val/val_annotations.txt"] = "\n".join(annotations).encode()
    return files


def write_zip(path: Path, files: dict[str, bytes], prefix: str = "tiny-imagenet-200/") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(prefix, b"") if prefix else None
        for name, data in files.items():
            archive.writestr(prefix + name, data)
    return path


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def load(path: Path, **options: object) -> Dataset:
    return load_dataset(DataSettings(name="tiny-imagenet", path=str(path), **options), seed=2023)


def assert_is_the_toy(tiny: Dataset) -> None:
    assert tiny.class_names == ("goldfish", "crane (n00000002)", "crane (n00000003)", "n00000004")
    assert tiny.image_shape == (64, 64, 3)
    assert np.bincount(tiny.train_labels).tolist() == [3, 3, 3, 3]
    np.testing.assert_allclose(tiny.train_images.mean(axis=(1, 2, 3)), 20 * (tiny.train_labels + 1), atol=2)
    np.testing.assert_allclose(tiny.test_images.mean(axis=(1, 2, 3)), 100 + 20 * (tiny.test_labels + 1), atol=2)


@pytest.mark.parametrize("form", ["zip", "folder with zip", "extracted", "extracted itself", "flat zip"])
def test_official_layouts(tree: dict[str, bytes], form: str, tmp_path: Path):
    if "zip" in form:
        archive = write_zip(
            tmp_path / "tiny-imagenet-200.zip", tree, "" if form == "flat zip" else "tiny-imagenet-200/"
        )
        path = tmp_path if form.startswith("folder") else archive
    else:
        path = write_files(tmp_path / "tiny-imagenet-200", tree)
        path = path if form.endswith("itself") else tmp_path
    assert_is_the_toy(load(path))


def test_constants(tree: dict[str, bytes], tmp_path: Path):
    tiny = load(write_files(tmp_path, tree))
    assert tiny.mean == (0.4802, 0.4481, 0.3975)
    assert tiny.std == (0.2302, 0.2265, 0.2262)
    assert tiny.augmentation == Augmentation(crop_padding=4, flip=True)


def test_dropped_classes_are_not_even_decoded(tree: dict[str, bytes], tmp_path: Path):
    order = np.random.RandomState(2023).permutation(4)
    for dropped in order[2:]:
        tree[f"train/n0000000{dropped + 1}/images/n0000000{dropped + 1}_1.JPEG"] = b"damaged"
    path = write_zip(tmp_path / "t.zip", tree)
    small = load(path, subset_classes=2)
    shades = [small.train_images[small.train_labels == label].mean() for label in (0, 1)]
    np.testing.assert_allclose(shades, 20 * (order[:2] + 1), atol=2)
    with pytest.raises(DataError, match="not an image in a known format"):
        load(path)


def test_damaged_zips(tree: dict[str, bytes], tmp_path: Path):
    whole = write_zip(tmp_path / "whole.zip", tree)
    cut = tmp_path / "cut.zip"
    cut.write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"not a whole zip.*fedfeat data get tiny-imagenet"):
        load(cut)
    flipped = bytearray(whole.read_bytes())
    at = flipped.index(b"n00000001_2.JPEG") + 300
    flipped[at] ^= 0xFF
    bad = tmp_path / "bad.zip"
    bad.write_bytes(flipped)
    with pytest.raises(DataError, match="the zip is damaged"):
        load(bad)
    other = write_zip(tmp_path / "other.zip", {"a.txt": b"a"})
    with pytest.raises(DataError, match=r"expected the file wnids\.txt"):
        load(other)


def test_wrong_annotations(tree: dict[str, bytes], tmp_path: Path):
    good = tree["val/val_annotations.txt"]
    cases = {
        b"val_0.JPEG\tn12345678\t0": "line 5: expected an image and a known wnid",
        b"nonsense": "line 5: expected an image and a known wnid, got 'nonsense'",
        b"val_77.JPEG\tn00000001\t0": r"val/images/val_77\.JPEG is missing \(1 in all\)",
    }
    for i, (line, message) in enumerate(cases.items()):
        tree["val/val_annotations.txt"] = good + b"\n" + line
        with pytest.raises(DataError, match=message):
            load(write_files(tmp_path / str(i), tree))
    del tree["val/val_annotations.txt"]
    with pytest.raises(DataError, match=r"val_annotations\.txt is missing"):
        load(write_files(tmp_path / "none", tree))


def test_images_of_another_size_are_refused(tree: dict[str, bytes], tmp_path: Path, encode):
    tree["train/n00000002/images/n00000002_1.JPEG"] = encode(np.zeros((64, 48, 3), np.uint8), "JPEG")
    with pytest.raises(DataError, match=r"n00000002_1\.JPEG: the size is 48x64 but .*n00000001_0\.JPEG is 64x64"):
        load(write_files(tmp_path, tree))


def tree_of(wnids: list[str], image: bytes) -> dict[str, bytes]:
    files = {"wnids.txt": "\n".join(wnids).encode()}
    for number, wnid in enumerate(wnids):
        files[f"train/{wnid}/images/{wnid}_0.JPEG"] = files[f"val/images/val_{number}.JPEG"] = image
    rows = (f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62" for number, wnid in enumerate(wnids))
    return files | {"val/val_annotations.txt": "\n".join(rows).encode()}


def test_of_200_classes_every_seed_takes_the_same_50_by_name(encode, tmp_path: Path):
    image = encode(np.zeros((64, 64, 3), np.uint8))
    wnids = [*(f"n{number:08d}" for number in range(150)), *SUBSET]
    np.random.default_rng(0).shuffle(wnids)
    path = write_zip(tmp_path / "t.zip", tree_of(wnids, image))
    for seed in (2023, 2024):
        tiny = load_dataset(DataSettings(name="tiny-imagenet", path=str(path)), seed=seed)
        assert tiny.class_names == SUBSET
        assert tiny.train_labels.tolist() == sorted(tiny.test_labels.tolist()) == list(range(50))
    drawn = DataSettings(name="tiny-imagenet", path=str(path), subset_classes=50)
    assert len({load_dataset(drawn, seed=seed).class_names for seed in (2023, 2024)}) == 2


def test_a_copy_of_50_classes_is_taken_as_it_is_and_one_without_the_50_is_refused(encode, tmp_path: Path):
    image = encode(np.zeros((64, 64, 3), np.uint8))
    wnids = [f"n{number:08d}" for number in range(60)]
    few = load(write_zip(tmp_path / "few.zip", tree_of(wnids[:50], image)))
    assert few.class_names == tuple(wnids[:50])
    with pytest.raises(DataError, match=r"among 60, and n01443537 \(50 in all\) is not there"):
        load(write_zip(tmp_path / "other.zip", tree_of(wnids, image)))


def test_the_50_are_sorted_and_distinct():
    assert len(set(SUBSET)) == 50
    assert list(SUBSET) == sorted(SUBSET)
    assert (SUBSET[0], SUBSET[-1]) == ("n01443537", "n09256479")
