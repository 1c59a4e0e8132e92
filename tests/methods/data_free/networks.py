"""Networks and images for the tests of image synthesis."""

from __future__ import annotations

import torch
from torch import nn

from fedfeat.algorithm.method import linear_head
from fedfeat.data.augment import DeviceImages
from fedfeat.methods.data_free.pool import MAPPING
from fedfeat.models import FlatModel, ModelSettings, Network, build_network
from toy import NUM_CLASSES

ANCHOR_DIM = 12


def network_for(shape=(8, 8, 1), classes=NUM_CLASSES, name="small-cnn", width=8, norm="batch") -> Network:
    network = build_network(
        ModelSettings(name=name, width=width, norm=norm),
        shape,
        linear_head,
        seed=3,
        num_classes=classes,
        extras={MAPPING: lambda dim: nn.Linear(dim, ANCHOR_DIM)},
    )
    network.head.grow(classes, 0)
    return network


def device_images(dataset, augmentation=None) -> DeviceImages:
    return DeviceImages(
        dataset.train_images,
        dataset.train_labels,
        mean=dataset.mean,
        std=dataset.std,
        augmentation=augmentation or dataset.augmentation,
        device=torch.device("cpu"),
    )


def anchors_for(classes=NUM_CLASSES) -> torch.Tensor:
    return torch.randn(classes, ANCHOR_DIM, generator=torch.Generator().manual_seed(5))


def frozen(network: Network) -> Network:
    """As an engine hands it out: numbers are views into one vector, nothing is trained."""
    return FlatModel(network.requires_grad_(False)).network.eval()
