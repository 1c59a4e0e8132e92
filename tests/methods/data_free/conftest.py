from __future__ import annotations

import pytest
import torch
from networks import anchors_for, device_images, frozen, network_for
from torch import nn

from fedfeat.data.dataset import Augmentation
from fedfeat.methods.data_free.pool import MAPPING
from fedfeat.methods.data_free.synthesis import SynthesisContext
from fedfeat.models import Network
from toy import NUM_CLASSES, toy_dataset


@pytest.fixture(scope="session")
def trained() -> Network:
    """A teacher that knows the toy classes, with features near their anchors."""
    network, images, anchors = network_for(), device_images(toy_dataset()), anchors_for()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for step in range(60):
        batch = torch.randint(len(images), (32,), generator=torch.Generator().manual_seed(step))
        outputs, labels = network(images.plain(batch)), images.labels[batch]
        loss = nn.functional.cross_entropy(outputs.logits, labels)
        loss = loss + nn.functional.mse_loss(network.extras[MAPPING](outputs.features), anchors[labels])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    network.eval()
    with torch.no_grad():
        right = network(images.plain(torch.arange(len(images)))).logits.argmax(1) == images.labels
    assert right.float().mean() > 0.95
    return frozen(network)


@pytest.fixture
def context(trained) -> SynthesisContext:
    images = device_images(toy_dataset(Augmentation(1, True, 0.3)))
    return SynthesisContext(
        trained, images, NUM_CLASSES, tuple(f"square-{c}" for c in range(NUM_CLASSES)), seed=7, task=0
    )
