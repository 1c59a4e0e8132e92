import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.step import Known, Seen
from fedfeat.data.augment import DeviceImages
from fedfeat.data.dataset import Augmentation
from fedfeat.federation.evaluation import count
from fedfeat.models import Outputs


class Reader(nn.Module):
    """Predicts the class written into an image's only pixel, among four seen classes."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(1.0)

    def forward(self, x):
        logits = self.drop(F.one_hot(x[:, 0, 0, 0].round().long(), 4).float())
        return Outputs(features=x.flatten(1), logits=logits)


#          true, predicted
SAMPLES = [(0, 0), (0, 1), (1, 1), (1, 1), (2, 0), (5, 3), (3, 2), (3, 3), (4, 0), (2, 2), (0, 1)]
TABLE = [[1, 2, 0, 0], [0, 2, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]]
SEEN = Seen(task=1, num_old=2, num_classes=4)
NOTHING = Known({}, {})
PLAIN = Method("plain")


def split(labels, pixels):
    """Images of one pixel each, whose normalised value is the pixel itself."""
    return DeviceImages(
        np.array(pixels, np.uint8).reshape(-1, 1, 1, 1),
        np.array(labels, np.int64),
        mean=(0.0,),
        std=(1 / 255,),
        augmentation=Augmentation(),
        device=torch.device("cpu"),
    )


@pytest.fixture
def images():
    return split(*zip(*SAMPLES, strict=True))


def opposite(network, outputs, seen, known):
    return outputs.logits.flip(1)


@pytest.mark.parametrize("batch", [1, 4, 512])
def test_every_seen_image_is_counted_once_by_true_and_predicted_class(images, batch):
    tables = count(Reader(), images, SEEN, PLAIN, NOTHING, batch=batch)
    assert tables.plain.tolist() == TABLE
    assert tables.corrected.tolist() == TABLE


def test_images_of_unseen_classes_are_left_out(images):
    assert count(Reader(), images, SEEN, PLAIN, NOTHING).plain.sum() == sum(true < 4 for true, _ in SAMPLES)


def test_the_correction_is_counted_beside_the_plain_prediction(images):
    tables = count(Reader(), images, SEEN, Method("corrected", predict=opposite), NOTHING, batch=3)
    assert tables.plain.tolist() == TABLE
    assert tables.corrected.tolist() == [row[::-1] for row in TABLE]


def test_variants_are_counted_by_name_beside_the_prediction_itself(images):
    method = Method("variants", variants={"opposite": opposite, "other": lambda *_: torch.eye(4)[[3]]})
    tables = count(Reader(), images, SEEN, method, NOTHING, batch=1)
    assert tables.corrected.tolist() == TABLE
    assert list(tables.variants) == ["opposite", "other"]
    assert tables.variants["opposite"].tolist() == [row[::-1] for row in TABLE]
    assert tables.variants["other"].tolist() == [[0, 0, 0, sum(row)] for row in TABLE]


def test_the_correction_is_told_the_servers_numbers_and_where_the_stream_stands(images):
    told = []

    def spy(network, outputs, seen, known):
        told.append((seen, known, network.training))
        return outputs.logits

    known = Known({"prior_head": 0.25}, {})
    count(Reader(), images, SEEN, Method("spied on", predict=spy), known)
    assert told == [(SEEN, known, False)]


def test_evaluation_runs_in_evaluation_mode_even_after_training(images):
    assert count(Reader().train(), images, SEEN, PLAIN, NOTHING).plain.tolist() == TABLE


def test_tables_of_several_holders_add_up(images):
    total = sum(
        count(Reader(), split(*zip(*part, strict=True)), SEEN, PLAIN, NOTHING).plain
        for part in (SAMPLES[:6], SAMPLES[6:])
    )
    assert total.tolist() == TABLE


def test_nobody_to_count_gives_empty_tables():
    assert count(Reader(), split([], []), SEEN, PLAIN, NOTHING).plain.tolist() == [[0] * 4] * 4


def test_where_tasks_bring_domains_every_domain_so_far_has_rows_of_its_own():
    #        domain, true, predicted
    samples = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 1), (1, 1, 3), (2, 0, 1), (0, 3, 3)]
    domains, labels, pixels = zip(*samples, strict=True)
    seen = Seen(task=1, num_old=0, num_classes=4)
    tables = count(Reader(), split(labels, pixels), seen, PLAIN, NOTHING, domains=torch.tensor(domains))
    expected = np.zeros((8, 4), int)
    for domain, true, predicted in samples:
        if domain <= seen.task:
            expected[4 * domain + true, predicted] += 1
    assert tables.plain.tolist() == expected.tolist()
