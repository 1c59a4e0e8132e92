from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import device_images

from fedfeat.data.dataset import NO_AUGMENTATION, Augmentation
from fedfeat.methods.data_free.pool import SyntheticPool, endless_batches, plan_batches, quantised
from toy import toy_dataset


def test_eight_bits_truncate_and_clamp():
    values = torch.tensor([-0.5, 0.0, 0.999, 1.0, 1.5, 100.9 / 255])
    assert quantised(values.view(6, 1, 1, 1)).flatten().tolist() == [0, 0, 254, 255, 255, 100]


def test_bytes_survive_the_round_trip_and_channels_come_last():
    stored = torch.randint(0, 256, (5, 4, 6, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    # Half a grey level above the value, so that truncation gives it back whatever the rounding.
    again = quantised(((stored.float() + 0.5) / 255).permute(0, 3, 1, 2))
    assert torch.equal(again, stored)
    assert again.is_contiguous()


def test_a_pool_grows_batch_by_batch():
    pool = SyntheticPool()
    pool.add(torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]))
    pool.add(torch.ones(3, 1, 4, 4), torch.tensor([1, 2, 0]))
    assert pool.images.shape == (5, 4, 4, 1)
    assert pool.images.dtype == torch.uint8
    assert pool.images[:, 0, 0, 0].tolist() == [0, 0, 255, 255, 255]
    assert pool.labels.tolist() == [0, 1, 1, 2, 0]


def numbered(count):
    """Images that are a single grey level: their number."""
    return torch.arange(count, dtype=torch.uint8).view(count, 1, 1, 1).expand(count, 8, 8, 1).contiguous()


def grey_values(batch, images):
    return torch.round((batch - images.shift) / images.scale).flatten(1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(count=st.integers(1, 40), batch=st.integers(1, 50))
def test_every_pass_visits_an_image_at_most_once_in_batches_of_one_size(count, batch):
    images = device_images(toy_dataset(NO_AUGMENTATION))
    size = min(batch, count)
    per_pass = count // size
    batches = endless_batches(numbered(count), batch, images, np.random.default_rng)
    for _ in range(3):
        seen = torch.cat([grey_values(b, images)[:, 0] for b in islice(batches, per_pass)])
        assert len(seen) == per_pass * size
        assert len(set(seen.tolist())) == len(seen)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(count=st.integers(1, 40), size=st.integers(1, 40), batches=st.integers(1, 9))
def test_plans_in_one_row_are_those_of_endless_batches(count, size, batches):
    images = device_images(toy_dataset(NO_AUGMENTATION))
    size = min(size, count)
    plan = plan_batches(count, size, batches, images.augmentation, np.random.default_rng)
    assert [len(values) for values in plan] == [batches * size] * len(plan)
    one_by_one = islice(endless_batches(numbered(count), size, images, np.random.default_rng), batches)
    expected = torch.cat([grey_values(batch, images)[:, 0] for batch in one_by_one])
    assert torch.equal(grey_values(images.normalise(numbered(count)[plan.order].float()), images)[:, 0], expected)


def test_the_order_is_the_address_and_changes_with_every_pass():
    images = device_images(toy_dataset(NO_AUGMENTATION))

    def passes(offset):
        batches = endless_batches(numbered(32), 32, images, lambda n: np.random.default_rng(n + offset))
        return [grey_values(b, images)[:, 0].tolist() for b in islice(batches, 2)]

    first = passes(0)
    assert first == passes(0)
    assert first[0] != first[1]
    assert first[1] == passes(1)[0]


def test_images_are_cropped_and_flipped_but_never_brightened():
    images = device_images(toy_dataset(Augmentation(crop_padding=2, flip=True, brightness=0.5)))
    ramp = torch.arange(8, dtype=torch.uint8).view(1, 1, 8, 1).expand(64, 8, 8, 1) + 100
    batch = next(endless_batches(ramp.contiguous(), 64, images, np.random.default_rng))
    pixels = torch.round((batch - images.shift) / images.scale)
    inside = pixels[pixels > 0]
    assert set(inside.tolist()) == set(range(100, 108))
    assert (pixels == 0).any()
    middle = pixels[:, 0, 4, 2:6]
    falling = (middle[:, 0] > middle[:, 1]).float().mean()
    assert 0.2 < falling < 0.8


@pytest.mark.parametrize("augmentation", [NO_AUGMENTATION, Augmentation(1, True, 0.2)])
def test_batches_are_normalised_as_the_data_are(augmentation):
    dataset = toy_dataset(augmentation)
    images = device_images(dataset)
    white = torch.full((4, 8, 8, 1), 255, dtype=torch.uint8)
    batch = next(endless_batches(white, 4, images, np.random.default_rng))
    assert float(batch.max()) == pytest.approx((1 - 0.25) / 0.25, rel=1e-5)
    assert batch.shape == (4, 1, 8, 8)
