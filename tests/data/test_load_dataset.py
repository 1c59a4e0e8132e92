from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from fedfeat.config.config import make_config
from fedfeat.core.errors import DataError
from fedfeat.data import Augmentation, DataSettings, fingerprint, list_datasets, load_dataset
from fedfeat.data.dataset import channel_statistics
from fedfeat.data.load import choose_classes
from fedfeat.runs.experiment import start


def test_digits_is_whole_stratified_and_always_the_same():
    from sklearn.datasets import load_digits

    digits = load_dataset(DataSettings())
    assert digits.image_shape == (8, 8, 1)
    assert (len(digits.train_images), len(digits.test_images)) == (1352, 445)
    train, test = np.bincount(digits.train_labels), np.bincount(digits.test_labels)
    np.testing.assert_array_equal(train + test, np.bincount(load_digits().target))
    np.testing.assert_array_equal(test, (train + test) // 4)
    assert int(digits.train_images.max()) == 255
    assert digits.augmentation == Augmentation()
    assert fingerprint(digits) == "1a915c832dd7e63a4de91f990367ca6211b553284d590328120dea7b8c93b806"


def test_digits_test_samples_are_every_fourth_of_a_class():
    from sklearn.datasets import load_digits

    raw, digits = load_digits(), load_dataset(DataSettings())
    sevens = np.round(raw.images[raw.target == 7] * 255 / 16)
    np.testing.assert_array_equal(digits.test_images[digits.test_labels == 7][..., 0], sevens[3::4])


def test_digits_constants_are_those_of_its_training_images():
    digits = load_dataset(DataSettings())
    assert (digits.mean, digits.std) == channel_statistics(digits.train_images)


def test_digits_takes_a_subset_but_no_path(tmp_path: Path):
    two = load_dataset(DataSettings(subset_classes=2), seed=5)
    expected = np.random.RandomState(5).permutation(10)[:2]
    assert two.class_names == tuple(str(c) for c in expected)
    with pytest.raises(DataError, match=r"built in.*remove data\.path"):
        load_dataset(DataSettings(path=str(tmp_path)))


def test_unknown_name_names_the_nearest():
    with pytest.raises(DataError, match=r"'cifar-10'.*did you mean 'cifar10'"):
        load_dataset(DataSettings(name="cifar-10"))


def test_missing_set_says_where_it_looked_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_home: Path
):
    monkeypatch.setenv("FEDFEAT_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        load_dataset(DataSettings(name="tiny-imagenet"))
    message = str(caught.value)
    for place in (tmp_path / "tiny-imagenet-subset", data_home / "data" / "tiny-imagenet"):
        assert str(place) in message
    assert "fedfeat data get tiny-imagenet" in message
    assert "data.path" in message


@pytest.mark.parametrize("name", ["parquet", "npz", "folder"])
def test_own_data_needs_a_path_that_exists(name: str, tmp_path: Path):
    with pytest.raises(DataError, match=r"set data\.path"):
        load_dataset(DataSettings(name=name))
    with pytest.raises(DataError, match="does not exist"):
        load_dataset(DataSettings(name=name, path=str(tmp_path / "nothing")))


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny-imagenet", "parquet"])
def test_a_folder_without_the_layout_is_refused(name: str, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("nothing here")
    with pytest.raises(DataError, match="holds nothing in a layout"):
        load_dataset(DataSettings(name=name, path=str(tmp_path)))


def test_path_expands_home_and_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WHERE", "mine")
    assert DataSettings(path="~/$WHERE/set").location() == tmp_path / "mine" / "set"
    assert DataSettings().location() is None


def test_settings_refuse_nonsense():
    for wrong in ({"subset_classes": 0}, {"augment": "cutout"}, {"nmae": "digits"}):
        with pytest.raises(ValidationError):
            DataSettings(**wrong)


def test_subset_of_200_classes_follows_the_legacy_permutation():
    wnids = tuple(f"n{i:08d}" for i in range(200))
    assert choose_classes(wnids, 50, 2023)[:10] == [13, 188, 96, 122, 85, 2, 61, 173, 38, 8]
    backwards = wnids[::-1]
    assert [backwards[c] for c in choose_classes(backwards, 50, 2023)] == [
        wnids[c] for c in choose_classes(wnids, 50, 2023)
    ]


@pytest.mark.parametrize("count", [None, 200, 500])
def test_enough_classes_or_fewer_are_all_kept_in_order(count: int | None):
    assert choose_classes(tuple(map(str, range(200))), count, 3) == list(range(200))


def test_augmentation_can_be_chosen():
    assert load_dataset(DataSettings(augment="crop-flip")).augmentation == Augmentation(1, True)
    assert load_dataset(DataSettings(augment="none")).augmentation == Augmentation()


def test_every_listed_set_is_described():
    infos = list_datasets()
    assert [info.name for info in infos][:3] == ["digits", "mnist", "fashion-mnist"]
    assert all(info.description and info.image_size for info in infos)
    assert {info.name for info in infos if info.needs == "path"} == {"parquet", "npz", "folder", "domains"}


def test_a_share_of_the_training_images_is_evaluated_on_in_place_of_the_test_images(tmp_path):
    whole, split = (load_dataset(DataSettings(validation=share), seed=3) for share in (None, 0.1))
    assert len(split.train_labels) + len(split.test_labels) == len(whole.train_labels)
    config = make_config({"data": {"validation": 0.1}, "train": {"rounds": 1}, "scenario": {"tasks": 2}})
    result = start(config, tmp_path / "run")
    assert sum(map(sum, result["confusion"])) == len(load_dataset(config.data, seed=config.seed).test_labels)
    assert any("held-out training images, not of test images" in note for note in result["notes"])
