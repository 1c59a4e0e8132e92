"""A sweep on a real Ray cluster of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from sweep_toys import MakeConfig

from fedfeat.core.errors import FedfeatError, MissingExtra
from fedfeat.runs.sweep import Event, Planned, finish
from fedfeat.runs.sweep.cluster import ray_cluster
from toy import untimed


@pytest.mark.ray
def test_a_local_cluster_gives_the_same_results_and_survives_failures(
    toy: MakeConfig, odd_methods: dict[str, list[str]], tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    configs = [toy("finetune"), toy("fedcbdr+feat"), toy("replay", data={"path": str(tmp_path / "gone.npz")})]
    configs.append(toy("deadly", **odd_methods))
    seen: list[tuple[str, str]] = []

    def watch(run: Planned, event: Event) -> None:
        seen.append((run.config.method, event["event"]))

    there = finish(configs, tmp_path / "ray", pool=ray_cluster("local", workers=2), watch=watch)
    here = finish(configs[:2], tmp_path / "here")
    for a, b in zip(here, there, strict=False):
        assert a.result is not None
        assert b.result is not None
        assert untimed(a.result) == untimed(b.result)
    assert "gone.npz" in str(there[2].error)
    assert "the cluster lost this run" in str(there[3].error)
    assert ("replay", "failed") in seen
    assert ("deadly", "failed") in seen
    assert [seen.count((method, "task")) for method in ("finetune", "fedcbdr+feat")] == [3, 3]
    again: list[str] = []
    finish(
        configs[:2], tmp_path / "ray", pool=ray_cluster("local"), watch=lambda run, event: again.append(event["event"])
    )
    assert again == ["stored", "stored"]


def test_an_address_where_nobody_answers_is_one_sentence(toy: MakeConfig, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(FedfeatError, match=r"--ray 127.0.0.1:1: no cluster answers there"):
        finish([toy()], tmp_path, pool=ray_cluster("127.0.0.1:1"))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedfeat\[ray\]'"):
        ray_cluster("local")
