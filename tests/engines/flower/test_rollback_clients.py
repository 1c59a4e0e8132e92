"""A server that goes back: clients follow where their policy allows it, and refuse with one sentence elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dropouts import config_for, same_outcome, uninterrupted
from local_grid import LocalGrid, local_nodes
from test_client_store import commit

from fedfeat.engines.flower.client import FederationClient
from fedfeat.engines.flower.codec import pack
from fedfeat.engines.flower.policy import ClientPolicy, PolicyError
from fedfeat.engines.flower.store import Store, UpdateAccount
from fedfeat.federation.exchange import TooFewClients
from fedfeat.runs import deploy
from fedfeat.runs.rollback import roll_back
from fedfeat.runs.server_app import run_in


def nodes_with(tmp_path: Path, policy: ClientPolicy) -> dict[int, FederationClient]:
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    for client in nodes.values():
        object.__setattr__(client.settings, "policy", policy)
    return nodes


def run_in_folder(tmp_path: Path, nodes: dict[int, FederationClient], method: str) -> Any:
    kept = {"run": {"keep_task_ends": True, "checkpoint_seconds": 0.0}}
    deploy.prepare_run(config_for(tmp_path, method, kept), tmp_path / "run")
    return run_in(tmp_path / "run", LocalGrid(nodes))


def updates(nodes: dict[int, FederationClient]) -> list[int]:
    return [UpdateAccount(client.settings.folder).updates for client in nodes.values()]


@pytest.mark.parametrize("method", ["fedcbdr+feat", "refed+moon"])
@pytest.mark.parametrize("to", ["1:end", "2:2"])
def test_clients_that_allow_it_repeat_the_rounds_and_count_them(tmp_path: Path, method: str, to: str) -> None:
    nodes = nodes_with(tmp_path, ClientPolicy(most_rollbacks=1, one_answer=True))
    result = run_in_folder(tmp_path, nodes, method)
    expected = uninterrupted(tmp_path, method)
    assert same_outcome(tmp_path / "run", result, expected)
    before = updates(nodes)
    repeated = roll_back(tmp_path / "run", to)["rounds"]
    nodes = nodes_with(tmp_path, ClientPolicy(most_rollbacks=1, one_answer=True))  # they were started again
    result = run_in_folder(tmp_path, nodes, method)
    assert result.pop("rollbacks")[0]["to"] == to
    assert same_outcome(tmp_path / "run", result, expected)
    assert updates(nodes) == [count + repeated for count in before]


def test_clients_without_permission_refuse_and_their_state_stays(tmp_path: Path) -> None:
    nodes = nodes_with(tmp_path, ClientPolicy())
    run_in_folder(tmp_path, nodes, "fedcbdr+feat")
    states = {n: c.run.store.now for n, c in nodes.items() if c.run}
    roll_back(tmp_path / "run", "1:end")
    with pytest.raises(TooFewClients):
        run_in_folder(tmp_path, nodes, "fedcbdr+feat")
    assert {n: c.run.store.now for n, c in nodes.items() if c.run} == states
    client = next(iter(nodes.values()))
    assert client.run is not None
    earlier = {"run": client.run.name, "op": "train", "task": 0, "round": 0, "client": 0, "generation": 0}
    sent = pack({"weights": torch.zeros(3)})
    assert "lies before what this client keeps" in client.ask(earlier, sent)[0]["failed"], "without saying so"


def test_a_store_goes_back_to_the_end_of_a_task_or_says_what_it_keeps(tmp_path: Path) -> None:
    for keep in (True, False):
        store = Store(tmp_path / str(keep), keep_ends=keep)
        for task in range(3):
            for round in range(3):
                commit(store, task, round, "train", model=torch.tensor([task, round]))
            commit(store, task, 2, "choose", model=torch.tensor([task, 9]))
        store = Store(tmp_path / str(keep), keep_ends=keep)
        with pytest.raises(PolicyError, match="2:1, which is not kept here; kept: "):
            store.go_back("2:1")
        store.go_back("3:3")
        assert torch.as_tensor(store.state["model"]).tolist() == [2, 2], "before the end of the task"
        if not keep:
            with pytest.raises(PolicyError, match="kept: no end of a task"):
                store.go_back("1:end")
            continue
        store.go_back("1:end")
        store = Store(tmp_path / str(keep), keep_ends=keep)
        assert torch.as_tensor(store.state["model"]).tolist() == [0, 9]
        assert (store.task, store.rollbacks, store.ends) == (0, 2, {})
        assert not store.reaches((0, 2))
        assert store.reaches((1, 0))
