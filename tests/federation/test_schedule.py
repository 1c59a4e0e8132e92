"""The learning rate over the rounds of a task."""

from __future__ import annotations

import pytest

from fedfeat.algorithm.settings import TrainSettings, learning_rate


def test_steps_divide_the_learning_rate_by_ten_after_each_milestone() -> None:
    settings = TrainSettings(lr=0.04, schedule="steps", rounds=100)
    found = {round: learning_rate(settings, round) for round in (0, 49, 50, 74, 75, 99)}
    assert found == {
        0: 0.04,
        49: 0.04,
        50: pytest.approx(0.004),
        74: pytest.approx(0.004),
        75: pytest.approx(0.0004),
        99: pytest.approx(0.0004),
    }
    assert learning_rate(settings.model_copy(update={"milestones": ()}), 99) == 0.04


def test_the_cosine_falls_from_the_first_round_to_its_end() -> None:
    settings = TrainSettings(lr=0.04, lr_min=0.001, rounds=100)
    assert learning_rate(settings, 0) == pytest.approx(0.04)
    assert learning_rate(settings, 50) == pytest.approx(0.0205)
    assert 0.001 < learning_rate(settings, 99) < 0.0011
