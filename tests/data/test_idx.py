"""MNIST, Fashion-MNIST and EMNIST from small files in their own format."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedfeat.core.errors import DataError
from fedfeat.data import DataSettings, load_dataset
from fedfeat.data.idx import EMNIST, FASHION_MNIST, MNIST, Layout, read_idx
from fedfeat.data.load import find_dataset, find_source
from idx_files import arrays, idx


def files(layout: Layout) -> dict[str, bytes]:
    return {name: idx(array) for name, array in zip(layout.members, arrays(layout), strict=True)}


def put(folder: Path, layout: Layout, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files(layout).items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return folder


def load(layout: Layout, path: Path, **options: object):
    return load_dataset(DataSettings(name=layout.name, path=str(path), **options))


@pytest.mark.parametrize("layout", [MNIST, FASHION_MNIST], ids=lambda layout: layout.name)
@pytest.mark.parametrize("folder", ["", "raw", "MNIST/raw"])
def test_files_packed_or_not_wherever_they_usually_lie(tmp_path: Path, layout: Layout, folder: str):
    put(tmp_path / "a" / folder, layout)
    packed, plain = load(layout, tmp_path / "a"), load(layout, put(tmp_path / "b", layout, packed=False))
    train, labels, *_ = arrays(layout)
    np.testing.assert_array_equal(packed.train_images[..., 0], train)
    np.testing.assert_array_equal(packed.test_images, plain.test_images)
    np.testing.assert_array_equal(packed.train_labels, labels)
    assert packed.image_shape == (28, 28, 1)
    assert packed.class_names == layout.class_names


@pytest.mark.parametrize("layout", EMNIST, ids=lambda layout: layout.name)
def test_emnist_is_turned_upright_and_counted_from_zero(tmp_path: Path, layout: Layout):
    """One zip serves all six; images lie on their side in it, and letters are counted from 1."""
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        for other in EMNIST:
            for name, data in files(other).items():
                archive.writestr(f"gzip/{name}.gz", gzip.compress(data, 1))
    found = load(layout, tmp_path)
    train, labels, *_ = arrays(layout)
    np.testing.assert_array_equal(found.train_images[..., 0], train.transpose(0, 2, 1))
    np.testing.assert_array_equal(found.train_labels, labels - layout.first_label)
    assert found.num_classes == {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26}.get(layout.name[7:], 10)
    np.testing.assert_array_equal(load(layout, tmp_path / "gzip.zip").test_images, found.test_images)


def test_the_splits_of_emnist_share_a_folder(tmp_path: Path, data_home: Path, monkeypatch: pytest.MonkeyPatch):
    layout = EMNIST[3]
    put(data_home / "data" / "emnist", layout)
    assert load_dataset(DataSettings(name=layout.name)).class_names[0] == "a"
    put(tmp_path / "emnist" / "raw", layout)
    monkeypatch.setenv("FEDFEAT_DATA", str(tmp_path))
    found = find_source(find_dataset(layout.name))
    assert found is not None
    assert found.files[0].parent == tmp_path / "emnist" / "raw"


def test_a_damaged_zip_and_one_of_something_else(tmp_path: Path):
    (tmp_path / "gzip.zip").write_bytes(b"PK not really")
    with pytest.raises(DataError, match=r"gzip\.zip: the file is damaged or cut off.*download it again"):
        load(EMNIST[0], tmp_path)
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(DataError, match=r"emnist-balanced-train-images-idx3-ubyte\.gz is not in it"):
        load(EMNIST[0], tmp_path)


def test_a_missing_file_is_named(tmp_path: Path):
    (put(tmp_path, MNIST) / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is missing \(1 of 4.*fedfeat data get mnist"):
        load(MNIST, tmp_path)


@pytest.mark.parametrize("cut", [0, 3, 10, 200, -1])
def test_files_that_are_cut_off(cut: int):
    whole = idx(np.arange(4 * 28 * 28).reshape(4, 28, 28))
    with pytest.raises(DataError, match="expected an IDX file"):
        read_idx("here", whole[:cut])
    with pytest.raises(DataError, match=r"here: .*download it again"):
        read_idx("here", gzip.compress(whole)[: cut or 5])


def test_files_of_another_kind():
    floats = bytes([0, 0, 0x0D, 1]) + (1).to_bytes(4, "big") + b"1234"
    for data in (floats, b"<html>not found</html>", idx(np.zeros((2, 2)))):
        with pytest.raises(DataError, match="expected an IDX file of bytes with 1 or 3 axes"):
            read_idx("here", data)


def test_more_images_than_labels_and_labels_out_of_range(tmp_path: Path):
    put(tmp_path, MNIST)
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.zeros(3))))
    with pytest.raises(DataError, match="20 images but 3 labels"):
        load(MNIST, tmp_path)
    labels.write_bytes(gzip.compress(idx(np.full(20, 10))))
    with pytest.raises(DataError, match=r"the label at index 0 is 10, outside 0\.\.9"):
        load(MNIST, tmp_path)
