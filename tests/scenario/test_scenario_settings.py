import pytest
from pydantic import ValidationError

from fedfeat.scenario import ScenarioSettings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"participation": 6}, "6 clients per round but there are only 5"),
        ({"participation": 0}, "at least 1"),
        ({"participation": 1.5}, r"\(0, 1\]"),
        ({"participation": 0.0}, r"\(0, 1\]"),
        ({"participation": True}, "valid integer"),
        ({"joins": {"5": 2}}, "ids run from 0 to 4"),
        ({"joins": {"3-7": 2}}, "ids run from 0 to 4"),
        ({"joins": {"3": 6}}, "tasks run from 1 to 5"),
        ({"joins": {"3": 0}}, "tasks run from 1 to 5"),
        ({"joins": {"three": 2}}, "such as '3'"),
        ({"joins": {"1-3": 2, "2": 3}}, "twice"),
        ({"joins": {"0-4": 2}}, "nobody for task 1"),
        ({"class_order": [0, 1, 1]}, "twice"),
        ({"beta": 0}, "greater than 0"),
        ({"tasks": 0}, "greater than or equal to 1"),
        ({"clintes": 3}, "Extra inputs"),
    ],
)
def test_contradictions_are_refused(settings, words):
    with pytest.raises(ValidationError, match=words):
        ScenarioSettings(**settings)


def test_every_field_says_what_it_means():
    assert all(field.description for field in ScenarioSettings.model_fields.values())


def test_a_whole_number_stays_a_number_and_a_fraction_a_fraction():
    assert ScenarioSettings(participation=1).participation == 1
    assert isinstance(ScenarioSettings(participation=1).participation, int)
    assert isinstance(ScenarioSettings(participation=1.0).participation, float)


def test_joins_take_ids_and_ranges():
    settings = ScenarioSettings(clients=6, joins={"1": 2, "3-5": 4})
    assert settings.first_tasks().tolist() == [0, 1, 0, 3, 3, 3]


def test_settings_survive_a_round_trip_through_plain_data():
    settings = ScenarioSettings(class_order=[2, 0, 1], joins={"3": 2}, participation=0.4)
    assert ScenarioSettings(**settings.model_dump(mode="json")) == settings
