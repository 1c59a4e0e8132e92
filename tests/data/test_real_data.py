"""The real sets, where FEDFEAT_DATA says they are; fingerprints are of the lossless parquet copies."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedfeat.data import DataSettings, fingerprint, load_dataset
from fedfeat.data.dataset import channel_statistics

SHARED = os.environ.get("FEDFEAT_DATA", "")


def needs(*folders: str) -> pytest.MarkDecorator:
    found = any((Path(SHARED) / folder).is_dir() for folder in folders) if SHARED else False
    return pytest.mark.skipif(not found, reason=f"FEDFEAT_DATA has no {folders[0]}")


def load(name: str, **options: object):
    return load_dataset(DataSettings(name=name, **options))


@pytest.fixture(autouse=True)
def shared_data(data_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFEAT_DATA", SHARED)


@pytest.mark.real_data
@needs("cifar10")
def test_cifar10():
    cifar = load("cifar10")
    assert cifar.image_shape == (32, 32, 3)
    assert np.bincount(cifar.train_labels).tolist() == [5000] * 10
    assert np.bincount(cifar.test_labels).tolist() == [1000] * 10
    assert channel_statistics(cifar.train_images)[0] == cifar.mean
    assert fingerprint(cifar) == "bedf231539ea5588af01c4ace900292de612aa4b4d5e5de9d07471ef0b11e126"


@pytest.mark.real_data
@needs("cifar100")
def test_some_classes_of_cifar100():
    cifar = load("cifar100", subset_classes=5)
    expected = np.random.RandomState(0).permutation(100)[:5]
    assert len(cifar.class_names) == 5
    assert np.bincount(cifar.train_labels).tolist() == [500] * 5
    assert np.bincount(cifar.test_labels).tolist() == [100] * 5
    from fedfeat.data.cifar import CIFAR100_CLASSES

    assert cifar.class_names == tuple(CIFAR100_CLASSES[c] for c in expected)


@pytest.mark.real_data
@needs("tiny-imagenet", "tiny-imagenet-subset")
def test_tiny_imagenet_by_default_has_50_classes():
    tiny = load("tiny-imagenet")
    assert tiny.image_shape == (64, 64, 3)
    assert np.bincount(tiny.train_labels).tolist() == [500] * 50
    assert np.bincount(tiny.test_labels).tolist() == [50] * 50
    assert len(set(tiny.class_names)) == 50
