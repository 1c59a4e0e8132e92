from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.core.errors import DataError
from fedfeat.data import Augmentation, Dataset, fingerprint, subset
from fedfeat.data.dataset import channel_statistics, validation_split


def make(classes: int = 3, n: int = 12, shape: tuple[int, int, int] = (4, 5, 1)) -> Dataset:
    rng = np.random.default_rng(1)
    labels = np.arange(n, dtype=np.int64) % classes
    return Dataset(
        name="toy",
        train_images=rng.integers(0, 256, (n, *shape), dtype=np.uint8),
        train_labels=labels,
        test_images=rng.integers(0, 256, (n, *shape), dtype=np.uint8),
        test_labels=labels[::-1].copy(),
        class_names=tuple(f"class {c}" for c in range(classes)),
        mean=(0.5,) * shape[2],
        std=(0.25,) * shape[2],
        augmentation=Augmentation(),
    )


def test_properties():
    toy = make()
    assert toy.num_classes == 3
    assert toy.image_shape == (4, 5, 1)


BAD = {
    "wrong dtype": (lambda d: {"train_images": d.train_images / 255}, r"training set.*uint8.*float64"),
    "mixed sizes": (
        lambda d: {"train_images": np.array([np.zeros((2, 2)), np.zeros((3, 3))], dtype=object)},
        "differ in size",
    ),
    "three axes": (lambda d: {"test_images": d.test_images[..., 0]}, r"test set.*4 axes.*\(12, 4, 5\)"),
    "empty": (lambda d: {"test_images": d.test_images[:0], "test_labels": d.test_labels[:0]}, "no images"),
    "no pixel": (lambda d: {"train_images": d.train_images[:, :0]}, "no pixel"),
    "label too high": (
        lambda d: {"train_labels": np.array([0] * 5 + [7] + [0] * 6)},
        r"index 5 is 7, outside 0\.\.2",
    ),
    "negative label": (
        lambda d: {"test_labels": np.array([-1] + [0] * 11)},
        r"index 0 is -1, outside 0\.\.2",
    ),
    "label dtype": (lambda d: {"train_labels": d.train_labels.astype(np.int32)}, "int64.*int32"),
    "lengths": (lambda d: {"train_labels": d.train_labels[:-1]}, "12 images but 11 labels"),
    "other test size": (lambda d: {"test_images": d.test_images[:, :3]}, r"\(4, 5, 1\).*\(3, 5, 1\)"),
    "name twice": (lambda d: {"class_names": ("a", "b", "a")}, "'a' is used twice"),
    "no names": (lambda d: {"class_names": ()}, "no classes"),
    "mean length": (lambda d: {"mean": (0.5, 0.5, 0.5)}, "1 channels, mean has 3"),
    "zero std": (lambda d: {"std": (0.0,)}, "above 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_in_one_sentence(case: str):
    change, message = BAD[case]
    toy = make()
    with pytest.raises(DataError, match=message) as caught:
        replace(toy, **change(toy))
    assert "\n" not in str(caught.value)


@given(st.permutations(range(5)), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_subset_keeps_exactly_the_samples_of_its_classes_in_the_given_order(order: list[int], count: int):
    toy, classes = make(classes=5, n=23), order[:count]
    small = subset(toy, classes)
    assert small.class_names == tuple(toy.class_names[c] for c in classes)
    for new, old in enumerate(classes):
        np.testing.assert_array_equal(
            small.train_images[small.train_labels == new], toy.train_images[toy.train_labels == old]
        )
    assert len(small.test_images) == np.isin(toy.test_labels, classes).sum()


@pytest.mark.parametrize("classes", [[0, 3], [-1], [1, 1], []])
def test_subset_refuses_unknown_or_repeated_classes(classes: list[int]):
    with pytest.raises(DataError, match=r"distinct classes in 0\.\.2"):
        subset(make(), classes)


def test_fingerprint_sees_pixels_labels_names_and_shape_but_not_storage():
    toy = make()
    other_pixel = toy.train_images.copy()
    other_pixel[-1, -1, -1, -1] ^= 1
    changed = [
        replace(toy, train_images=other_pixel),
        replace(toy, test_labels=toy.train_labels),
        replace(toy, class_names=("x", "y", "z")),
        replace(
            toy,
            train_images=toy.train_images.reshape(12, 5, 4, 1),
            test_images=toy.test_images.reshape(12, 5, 4, 1),
        ),
    ]
    assert len({fingerprint(toy), *map(fingerprint, changed)}) == 5
    stored_otherwise = replace(toy, train_images=np.asfortranarray(toy.train_images))
    assert fingerprint(stored_otherwise) == fingerprint(toy)


@given(st.integers(1, 3), st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_statistics_equal_the_plain_formula(channels: int, n: int, seed: int):
    images = np.random.default_rng(seed).integers(0, 256, (n, 3, 2, channels), dtype=np.uint8)
    mean, std = channel_statistics(images)
    scaled = images / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 1, 2)), atol=6e-5)
    np.testing.assert_allclose(std, scaled.std(axis=(0, 1, 2)), atol=6e-5)


def test_a_constant_channel_is_not_divided_by_zero():
    assert channel_statistics(np.full((3, 2, 2, 1), 255, dtype=np.uint8)) == ((1.0,), (1.0,))


def test_a_validation_split_takes_its_share_of_every_class_from_the_training_images():
    toy = make(classes=3, n=60)
    split = validation_split(toy, 0.1, seed=4)
    assert np.bincount(split.test_labels).tolist() == [2, 2, 2]
    assert np.bincount(split.train_labels).tolist() == [18, 18, 18]
    rows = np.concatenate([split.train_images, split.test_images]).reshape(60, -1)
    assert sorted(map(bytes, rows)) == sorted(map(bytes, toy.train_images.reshape(60, -1))), "no test image is left"
    for images, labels in ((split.train_images, split.train_labels), (split.test_images, split.test_labels)):
        for image, label in zip(images, labels, strict=True):
            assert toy.train_labels[(toy.train_images == image).all(axis=(1, 2, 3))].tolist() == [label]


def test_a_validation_split_has_an_address():
    toy = make(classes=3, n=60)
    first, again, other = (validation_split(toy, 0.1, seed=s) for s in (4, 4, 5))
    assert np.array_equal(first.test_images, again.test_images)
    assert not np.array_equal(first.test_images, other.test_images)
    # Images that are added to one class change nothing for another.
    kept = toy.train_labels < 2
    fewer = replace(
        toy,
        train_images=toy.train_images[kept],
        train_labels=toy.train_labels[kept],
        test_labels=toy.test_labels % 2,
        class_names=toy.class_names[:2],
    )
    both = validation_split(fewer, 0.1, seed=4)
    assert np.array_equal(both.test_images, first.test_images[first.test_labels < 2])


def test_a_class_too_small_to_hold_out_is_named():
    with pytest.raises(DataError, match=r"data\.validation: class 'class 0' has 1 training images"):
        validation_split(make(classes=3, n=3), 0.1, seed=0)
