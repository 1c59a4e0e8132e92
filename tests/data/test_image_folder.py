from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

from fedfeat.core.errors import DataError
from fedfeat.data import Dataset, DataSettings, load_dataset


def put(folder: Path, name: str, shade: int, encode, size: tuple[int, int] = (6, 6), form: str = "PNG") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(encode(np.full((*size, 3), shade, np.uint8), form))


def load(path: Path, **options: object) -> Dataset:
    return load_dataset(DataSettings(name="folder", path=str(path), **options))


def test_train_and_test_folders(tmp_path: Path, encode):
    for i, name in enumerate(["zebra", "ant"]):
        put(tmp_path / "train" / name, "1.png", 10 + i, encode)
        put(tmp_path / "train" / name, "2.BMP", 20 + i, encode, form="BMP")
        put(tmp_path / "test" / name, "3.png", 30 + i, encode)
        (tmp_path / "train" / name / "notes.txt").write_text("not an image")
        (tmp_path / "train" / name / ".hidden.png").write_text("not an image")
    (tmp_path / "train" / ".cache").mkdir()
    with pytest.warns(UserWarning, match=r"2 file\(s\) left out"):
        own = load(tmp_path)
    assert own.class_names == ("ant", "zebra")
    assert own.train_images[:, 0, 0, 0].tolist() == [11, 21, 10, 20]
    assert own.train_labels.tolist() == [0, 0, 1, 1]
    assert own.test_images[:, 0, 0, 0].tolist() == [31, 30]


def test_without_a_test_folder_every_fifth_of_a_class_is_held_back(tmp_path: Path, encode):
    for i in range(11):
        put(tmp_path / "a", f"{i:02d}.png", i, encode)
    for i in range(5):
        put(tmp_path / "b", f"{i:02d}.png", 100 + i, encode)
    own = load(tmp_path)
    assert own.test_images[:, 0, 0, 0].tolist() == [4, 9, 104]
    assert len(own.train_images) == 13


def test_relative_paths(tmp_path: Path, encode, monkeypatch: pytest.MonkeyPatch):
    for i in range(5):
        put(tmp_path / "mine" / "a", f"{i}.png", i, encode)
    monkeypatch.chdir(tmp_path)
    assert load(Path("mine")).class_names == ("a",)


def test_bad_folders(tmp_path: Path, encode):
    with pytest.raises(DataError, match="expected one sub-folder per class"):
        load(tmp_path)
    put(tmp_path / "a", "0.png", 0, encode)
    with pytest.raises(DataError, match="found 1 training and 0 test images"):
        load(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(DataError, match=rf"{os.sep}b: the class has no image"):
        load(tmp_path)


def test_mixed_sizes_name_both_images(tmp_path: Path, encode):
    for i in range(5):
        put(tmp_path / "a", f"{i}.png", i, encode)
    put(tmp_path / "b", "odd.png", 1, encode, size=(6, 8))
    with pytest.raises(DataError, match=r"odd\.png: the size is 8x6 but .*0\.png is 6x6; set data\.image_size"):
        load(tmp_path)


def test_test_class_without_training_images(tmp_path: Path, encode):
    put(tmp_path / "train" / "a", "1.png", 1, encode)
    put(tmp_path / "test" / "b", "1.png", 1, encode)
    with pytest.raises(DataError, match="b: this class has no training images"):
        load(tmp_path)


def test_cut_image(tmp_path: Path, encode):
    for i in range(5):
        put(tmp_path / "a", f"{i}.png", i, encode, size=(64, 64))
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    (tmp_path / "a" / "3.png").write_bytes(encode(noise)[:3000])
    with pytest.raises(DataError, match=r"3\.png: the image cannot be read"):
        load(tmp_path)


def test_of_few_images_the_last_is_held_back(tmp_path: Path, encode):
    for name, count in (("a", 2), ("b", 4), ("c", 5)):
        for i in range(count):
            put(tmp_path / name, f"{i}.png", i, encode)
    own = load(tmp_path)
    assert own.test_images[:, 0, 0, 0].tolist() == [1, 3, 4]
    assert own.test_labels.tolist() == [0, 1, 2]


def test_a_class_of_one_image_is_refused_unless_it_is_not_kept(tmp_path: Path, encode):
    for i in range(5):
        put(tmp_path / "a", f"{i}.png", i, encode)
    put(tmp_path / "b", "0.png", 0, encode)
    with pytest.raises(DataError, match="class 'b' has 1 training and 0 test images; add more images of it"):
        load(tmp_path)
    chosen = DataSettings(name="folder", path=str(tmp_path), subset_classes=1)
    seed = next(s for s in range(50) if np.random.RandomState(s).permutation(2)[0] == 0)
    assert load_dataset(chosen, seed=seed).class_names == ("a",)


def test_a_class_without_a_test_folder(tmp_path: Path, encode):
    for i, (split, name) in enumerate([("train", "a"), ("train", "c"), ("train", "c"), ("test", "a")]):
        put(tmp_path / split / name, f"{i}.png", 1, encode)
    with pytest.raises(DataError, match="class 'c' has 2 training and 0 test images; add test images of it"):
        load(tmp_path)


@pytest.mark.parametrize("split", ["test", "val", "validation", "valid"])
def test_names_of_the_test_folder(split: str, tmp_path: Path, encode):
    put(tmp_path / "train" / "a", "0.png", 1, encode)
    put(tmp_path / split / "a", "0.png", 2, encode)
    assert load(tmp_path).test_images[:, 0, 0, 0].tolist() == [2]


def test_train_without_test_is_named_but_train_may_be_a_class(tmp_path: Path, encode):
    put(tmp_path / "mine" / "train" / "a", "0.png", 1, encode)
    with pytest.raises(DataError, match=r"mine: there is train/ but no test/, val/, validation/ or valid/; add one"):
        load(tmp_path / "mine")
    for name in ("plane", "train"):
        for i in range(5):
            put(tmp_path / "vehicles" / name, f"{i}.png", i, encode)
    assert load(tmp_path / "vehicles").class_names == ("plane", "train")


def test_files_that_are_left_out_are_counted_in_one_warning(tmp_path: Path, encode):
    for i in range(5):
        put(tmp_path / "a", f"{i}.png", i, encode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path)
    put(tmp_path / "a" / "deeper", "5.png", 5, encode)
    put(tmp_path / "a" / ".hidden", "6.png", 6, encode)
    (tmp_path / "a" / "7.jfif").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"2 file\(s\) left out, such as 'a/7\.jfif'") as caught:
        assert len(load(tmp_path).train_images) == 4
    assert len(caught) == 1


@pytest.mark.skipif(os.name != "posix", reason="other systems keep names as text")
def test_names_that_are_not_utf8(tmp_path: Path, encode):
    for i in range(5):
        put(tmp_path / "a", os.fsdecode(b"caf\xe9%d.png" % i), i, encode)
    assert len(load(tmp_path).train_images) == 4
    put(tmp_path / os.fsdecode(b"caf\xe9"), "0.png", 1, encode)
    with pytest.raises(DataError, match=r"class folder 'caf\\udce9' is not valid UTF-8; rename it"):
        load(tmp_path)
