"""A federation of three clients with all that protects it switched on: it equals its simulation."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from attack.arena import arena
from attack_table import Recorder

pytestmark = [pytest.mark.attack, pytest.mark.processes, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
POLICY = """clip = 1.0
noise = 0.1
methods = ["fedcbdr+feat"]
operations = ["train", "masked_features", "leverage", "keep_by_leverage"]
one_answer = true
most_updates = 100
most_rollbacks = 1
"""
PRIVATE = {"model": {"norm": "group"}, "privacy": {"clip": 1.0, "noise": 0.1}}


def test_median_ranges_policies_keys_and_tls_equal_the_simulation(tmp_path: Path, record_attack: Recorder) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    settings = {"scenario": {"tasks": 2}, "train": {"rounds": 4, "robust": "median"}, **PRIVATE}
    with arena(tmp_path, "fedcbdr+feat", 3, **settings) as field:
        for k in range(3):
            field.client(k, "--policy", tmp_path / "policy.toml")
        result = field.finish(field.server())
        assert field.equals_simulation(result)
    assert result["rounds_with_fewer_clients"] == []
    assert len(field.audit("joined")) == 3
    outcome = "accuracies and weights are those of the simulation, bit for bit"
    record_attack("nobody", "median, ranges, policies, keys and TLS, all at once", outcome)
