from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedfeat.core.errors import DataError, MissingExtra
from fedfeat.data import Augmentation, Dataset, DataSettings, load_dataset, parquet
from fedfeat.data.dataset import channel_statistics
from fedfeat.data.tiny_imagenet import SUBSET


def write(path: Path, blobs: list[Any], labels: list[Any], *, image: str = "image", names=None, **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": blob, "path": None} for blob in blobs]
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    key = "fine_label" if "fine_label" in more else "label"
    columns = {
        image: pa.array(cells, struct),
        "label": pa.array(labels),
        **{k: pa.array(v) for k, v in more.items()},
    }
    table = pa.table(columns)
    if names is not None:
        info = {"info": {"features": {key: {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    pq.write_table(table, path)


def load(path: Path, name: str = "parquet", **options: Any) -> Dataset:
    return load_dataset(DataSettings(name=name, path=str(path), **options))


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("WebP", {"lossless": True, "exact": True})])
@pytest.mark.parametrize("image", ["img", "image"])
def test_shards_are_decoded_exactly_and_in_order(tmp_path: Path, encode, pixels, form, options, image: str):
    train, test = pixels(6, 9, 7, 3), pixels(2, 9, 7, 3)
    blobs = [encode(x, form, **options) for x in train]
    write(tmp_path / "train-00001-of-00002.parquet", blobs[4:], [1, 0], image=image, names=["cat", "dog"])
    write(tmp_path / "train-00000-of-00002.parquet", blobs[:4], [0, 0, 1, 1], image=image, names=["cat", "dog"])
    write(
        tmp_path / "test-00000-of-00001.parquet",
        [encode(x, form, **options) for x in test],
        [1, 0],
        image=image,
    )
    own = load(tmp_path)
    np.testing.assert_array_equal(own.train_images, train)
    np.testing.assert_array_equal(own.test_images, test)
    assert own.train_labels.tolist() == [0, 0, 1, 1, 1, 0]
    assert own.class_names == ("cat", "dog")
    assert (own.mean, own.std) == channel_statistics(train)
    assert own.augmentation == Augmentation()
    assert load(tmp_path, augment="crop-flip").augmentation == Augmentation(1, True)


@pytest.fixture
def small(tmp_path: Path, encode, pixels) -> Path:
    blobs = [encode(x) for x in pixels(4, 4, 4, 3)]
    write(tmp_path / "data" / "train-00000-of-00001.parquet", blobs, [0, 1, 2, 3])
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", blobs, [2, 3, 0, 1])
    return tmp_path


def test_validation_shards_sub_folder_and_numbered_names(small: Path):
    own = load(small)
    assert own.class_names == ("0", "1", "2", "3")
    assert own.test_labels.tolist() == [2, 3, 0, 1]


def test_fine_labels_come_before_others(tmp_path: Path, encode, pixels):
    blobs = [encode(x) for x in pixels(2, 4, 4, 3)]
    for split in ("train", "test"):
        names = ["apple", "bear"]
        write(
            tmp_path / f"{split}-0.parquet",
            blobs,
            [7, 8],
            names=names,
            fine_label=[1, 0],
            coarse_label=[5, 5],
        )
    own = load(tmp_path)
    assert own.train_labels.tolist() == [1, 0]
    assert own.class_names == ("apple", "bear")


def test_grey_only_if_every_image_is(tmp_path: Path, encode, pixels):
    grey = [encode(x) for x in pixels(3, 4, 4)]
    write(tmp_path / "a" / "train-0.parquet", grey, [0, 1, 0])
    write(tmp_path / "a" / "test-0.parquet", grey, [0, 1, 0])
    assert load(tmp_path / "a").image_shape == (4, 4, 1)
    write(tmp_path / "b" / "train-0.parquet", grey, [0, 1, 0])
    write(tmp_path / "b" / "test-0.parquet", [*grey[:2], encode(pixels(4, 4, 3))], [0, 1, 0])
    assert load(tmp_path / "b").image_shape == (4, 4, 3)


def test_cifar_by_name_without_metadata(tmp_path: Path, encode, pixels):
    blobs = [encode(x) for x in pixels(3, 32, 32, 3)]
    for split in ("train", "test"):
        write(tmp_path / f"{split}-0.parquet", blobs, [0, 9, 3], image="img")
    cifar = load(tmp_path, "cifar10")
    assert cifar.class_names[9] == "truck"
    assert cifar.augmentation.brightness == 63 / 255


def test_another_set_under_a_known_name_is_refused(small: Path):
    with pytest.raises(DataError, match="tiny-imagenet: expected 200 classes of 64x64x3 images, got 4 of 4x4x3"):
        load(small, "tiny-imagenet")


def test_wordnet_ids_are_subset_in_sorted_order(tmp_path: Path, encode):
    names = ["n00000002", "n00000001", "n00000003"]
    blobs = [encode(np.full((64, 64, 3), 50 * i, np.uint8)) for i in range(3)]
    for split in ("train", "validation"):
        write(tmp_path / f"{split}-0.parquet", blobs, [0, 1, 2], names=names)
    tiny = load(tmp_path, "tiny-imagenet", subset_classes=2)
    expected = [sorted(names)[i] for i in np.random.RandomState(0).permutation(3)[:2]]
    assert list(tiny.class_names) == expected
    assert [int(x[0, 0, 0]) for x in tiny.train_images[np.argsort(tiny.train_labels)]] == [
        50 * names.index(name) for name in expected
    ]


def test_shards_of_all_200_wordnet_ids_give_the_listed_50(tmp_path: Path, encode):
    names = [*(f"n{number:08d}" for number in range(150)), *reversed(SUBSET)]
    blob = encode(np.zeros((64, 64, 3), np.uint8))
    for split in ("train", "validation"):
        write(tmp_path / f"{split}-0.parquet", [blob] * 200, list(range(200)), names=names)
    assert load(tmp_path, "tiny-imagenet").class_names == SUBSET


def test_bad_shards(small: Path, encode, pixels, tmp_path: Path):
    train = small / "data" / "train-00000-of-00001.parquet"
    blob = encode(pixels(4, 4, 3))
    cases = [
        ([blob, b"not an image"], [0, 1], {}, "row 1: this is not an image in a known format"),
        ([blob, None], [0, 1], {}, "row 1: expected the bytes of an image, got NoneType"),
        ([blob, encode(pixels(5, 4, 3))], [0, 1], {}, r"row 1: the size is 4x5 but .* is 4x4"),
        ([blob, blob], [0, 2], {"names": ["a", "b"]}, r"index 1 is 2, outside 0\.\.1"),
        ([blob, blob], [0, -1], {"names": ["a", "b"]}, r"index 1 is -1, outside 0\.\.1"),
        ([blob, blob], ["a", "b"], {}, "must hold an integer in every row, got string"),
        ([blob, blob], [0, None], {}, "got int64 with 1 empty rows"),
        (
            [blob, blob],
            [0, 1],
            {"image": "picture"},
            "expected a column named img or image, got picture, label",
        ),
        (
            [blob, encode(pixels(4, 4).astype(np.uint16) * 200)],
            [0, 1],
            {},
            "row 1: expected 8 bits per channel",
        ),
    ]
    for blobs, labels, options, message in cases:
        write(train, blobs, labels, **options)
        with pytest.raises(DataError, match=message):
            load(small)
    train.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="not a readable parquet file"):
        load(small)


def test_missing_shards_and_splits(small: Path):
    folder = small / "data"
    (folder / "train-00000-of-00001.parquet").rename(folder / "train-00000-of-00002.parquet")
    with pytest.raises(DataError, match="expected 2 train shards, as their names say, found 1"):
        load(small)
    (folder / "train-00000-of-00002.parquet").rename(folder / "train-00000-of-00001.parquet")
    (folder / "validation-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match="neither test- nor validation-"):
        load(small)


@pytest.mark.parametrize(("module", "package"), [("PIL.Image", "pillow"), ("pyarrow.parquet", "pyarrow")])
def test_missing_packages_say_how_to_install(small: Path, monkeypatch, module: str, package: str):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"{package}.*pip install 'fedfeat\[images\]'"):
        load(small)


def test_a_test_split_without_labels_leaves_the_validation_split(small: Path, encode, pixels):
    """ImageNet's layout: labels of its test shards are all -1."""
    (test,) = small.rglob("validation*.parquet")
    write(test.with_name("test-00000-of-00001.parquet"), [encode(i) for i in pixels(3, 5, 5, 3)], [-1] * 3)
    source = parquet.open_parquet(small)
    assert source is not None
    assert source.test == (test,)


def test_large_row_groups_are_read_in_parts(tmp_path: Path, encode, pixels, monkeypatch: pytest.MonkeyPatch):
    """Rows of the kept classes come in order, whatever part of a shard they are in."""
    monkeypatch.setattr(parquet, "CHUNK", 7)
    images, labels = pixels(40, 5, 5, 3), [i % 4 for i in range(40)]
    for split in ("train", "test"):
        write(tmp_path / f"{split}.parquet", [encode(i) for i in images], labels)
    found = load(tmp_path, subset_classes=2)
    for label, name in enumerate(found.class_names):
        np.testing.assert_array_equal(found.train_images[found.train_labels == label], images[int(name) :: 4])


def test_classes_need_both_splits(small: Path, encode, pixels):
    blobs = [encode(x) for x in pixels(4, 4, 4, 3)]
    for labels, message in (
        ([0, 1, 1, 2], "class '3' has 0 training and 1 test images; add more images of it"),
        ([5, 6, 7, 8], r"class '0' \(8 more such\) has 0 training and 1 test images"),
        ([2024001, 1, 2, 3], "data: expected labels that number the classes .*, got 2024001; relabel"),
    ):
        write(small / "data" / "train-00000-of-00001.parquet", blobs, labels)
        with pytest.raises(DataError, match=message):
            load(small)


def test_metadata_without_names_counts_the_labels(small: Path, encode, pixels):
    file = small / "data" / "train-00000-of-00001.parquet"
    table = pq.read_table(file)
    info = {"info": {"features": {"label": {"names": None}}}}
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), file)
    assert load(small).class_names == ("0", "1", "2", "3")
