"""The deliberate faults of ``make mutants`` still fit the code; whether tests find them takes minutes."""

from mutants import FAULTS, node_ids, places


def test_every_fault_has_its_place_and_its_tests() -> None:
    assert {fault.name: len(places(fault)) for fault in FAULTS} == {fault.name: 1 for fault in FAULTS}
    assert all(node_ids(fault) for fault in FAULTS)
