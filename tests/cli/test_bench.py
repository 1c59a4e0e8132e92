"""``fedfeat bench gpu``: what it says without a GPU, and how its table reads."""

from __future__ import annotations

import pytest
import torch

from fedfeat.core.errors import FedfeatError
from gpu import need_gpu, table

RECORD = {
    "environment": {"gpu": "a GPU", "torch": "2.13.0"},
    "precision": "bf16",
    "batch": 128,
    "rows": [
        {"name": "bare", "images_per_second": 10_000.0, "ratio_to_bare": 1.0, "warm_up_seconds": 0.0},
        {"name": "cuda", "images_per_second": 75_000.0, "ratio_to_bare": 7.5, "warm_up_seconds": 12.34},
    ],
    "costs": {"GSA: share of a round": 0.0312},
    "agreement": {"cuda, lr 1e-05": {"distance": 3.21e-6, "of_the_way": 0.0312, "same_predictions": 0.9987}},
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused_in_one_sentence() -> None:
    with pytest.raises(FedfeatError, match="there is no NVIDIA GPU here"):
        need_gpu()


def test_the_table_has_speeds_ratios_warm_up_and_costs() -> None:
    head, bare, cuda, cost, agreement, footer = table(RECORD).splitlines()
    assert head.split() == ["images/s", "to", "bare", "warm-up"]
    assert bare.split() == ["bare", "10,000", "1.00x", "0.0", "s"]
    assert cuda.split() == ["cuda", "75,000", "7.50x", "12.3", "s"]
    assert cost.split()[-1] == "3.1%"
    said = "fp32, cuda, lr 1e-05 3.2e-06 from in process, 3.1% of the way, 99.87% predicted alike"
    assert " ".join(agreement.split()) == said
    assert footer == "a GPU, torch 2.13.0, bf16, batch 128"
