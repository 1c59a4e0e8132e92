"""Servers that are killed and clients that forget: nothing is trained twice, nothing is lost for good."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dropouts import QUICK, VICTIM, config_for, same_outcome, uninterrupted
from flwr.app import Error, Message
from local_grid import NODE, LocalGrid, local_nodes
from own_images import own_config, write_owners

from fedfeat.core.errors import CheckpointError, ConfigError
from fedfeat.core.payload import Payload
from fedfeat.engines.flower.client import ClientRun, ClientSettings, FederationClient
from fedfeat.engines.flower.codec import pack
from fedfeat.engines.flower.messages import PROTOCOL, config_to_send, from_records
from fedfeat.federation.exchange import TooFewClients
from fedfeat.report.run import read_run
from fedfeat.runs import deploy
from fedfeat.runs.experiment import resume
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.server_app import run_in
from toy import toy_config, write_toy

pytestmark = pytest.mark.slow


def count_work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int, str]]:
    """Note every operation that a client really runs."""
    worked: list[tuple[int, int, int, str]] = []
    run = ClientRun.run_op

    def counted(self: ClientRun, header: Any, request: Payload) -> Any:
        worked.append((header["client"], header["task"], header["round"], header["op"]))
        return run(self, header, request)

    monkeypatch.setattr(ClientRun, "run_op", counted)
    return worked


class Killed(BaseException):
    pass


class WatchedGrid(LocalGrid):
    """A watcher hears of every operation before and after a client worked on it; False drops the reply."""

    def __init__(
        self,
        nodes: dict[int, FederationClient],
        *,
        before: Callable[[Any], None] | None = None,
        after: Callable[[Any], bool],
    ) -> None:
        super().__init__(nodes)
        self.before, self.after = before, after

    def _deliver(self, message: Message) -> Message | None:
        header = from_records(message.content)[0]
        if "op" not in header:
            return super()._deliver(message)
        if self.before is not None:
            self.before(header)
        reply = super()._deliver(message)
        return reply if self.after(header) else None


@pytest.mark.parametrize("method", ["fedcbdr+feat", "herding+ncm", "fedcbdr+scaffold", "refed+moon", "fedewc"])
def test_a_server_killed_after_any_exchange_resumes_without_training_twice(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_for(tmp_path, method)
    expected = uninterrupted(tmp_path, method)
    worked = count_work(monkeypatch)
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    RunFolder.create(tmp_path / "run", config, {})
    result = None
    for attempt in range(40):
        grid = LocalGrid(nodes)
        # One is the hello. The end of a task takes up to three, and has to be done in one life.
        pull, left = grid.pull_messages, iter(range(2 + 2 * (attempt % 2)))

        def dying(ids: Any, pull: Any = pull, left: Any = left) -> Any:
            replies = list(pull(ids))
            if replies and next(left, None) is None:
                raise Killed
            return replies

        grid.pull_messages = dying  # type: ignore[method-assign]
        if attempt % 2:  # now and then the clients' processes are new as well: all they know is on disk
            nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
            grid.nodes = nodes
        try:
            result = run_in(tmp_path / "run", grid)
            break
        except Killed:
            continue
    assert result is not None
    assert attempt >= 2
    assert same_outcome(tmp_path / "run", result, expected)
    assert len(worked) == len(set(worked)), "an operation was run twice"


def test_too_few_clients_stop_the_run_and_it_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for(tmp_path)
    expected = uninterrupted(tmp_path, "fedcbdr+feat")
    worked = count_work(monkeypatch)
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    RunFolder.create(tmp_path / "run", config, {})
    seen: list[int] = []

    def strike(node: int, reply: Message) -> Message | Error | None:
        seen.append(node)
        return reply if len(seen) <= 6 or node == NODE else Error(5, "Node Unavailable")

    with pytest.raises(TooFewClients) as caught:
        run_in(tmp_path / "run", LocalGrid(nodes, strike))
    message = str(caught.value)
    assert "1 of 3 clients replied, and federation.quorum asks for 2" in message
    assert "client 0 missing: Node Unavailable (5)" in message
    result = run_in(tmp_path / "run", LocalGrid(nodes))
    assert same_outcome(tmp_path / "run", result, expected)
    assert len(worked) == len(set(worked)), "an operation was run twice"


@pytest.mark.parametrize("method", ["fedlwf", "target", "fedcbdr+feat"])
def test_a_client_whose_disk_was_lost_is_told_everything_again(method: str, tmp_path: Path) -> None:
    config = config_for(tmp_path, method)
    config = config.model_copy(update={"train": config.train.model_copy(update={"rounds": 3})})
    RunFolder.create(tmp_path / "run", config, {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    grid = LocalGrid(nodes)
    push = grid.push_messages

    def losing(messages: Any) -> Any:
        header = from_records(messages[0].content)[0]
        if (header.get("task"), header.get("round"), header.get("op")) == (1, 1, "train"):
            fresh = local_nodes(tmp_path, tmp_path / "toy.npz")
            store = tmp_path / "client1" / header["run"] / "store"
            if (store / "journal.json").exists() and not (tmp_path / "lost").exists():
                shutil.rmtree(store)
                (tmp_path / "lost").touch()
                grid.nodes[NODE + VICTIM] = fresh[NODE + VICTIM]
        return push(messages)

    grid.push_messages = losing  # type: ignore[method-assign]
    result = run_in(tmp_path / "run", grid)
    assert (tmp_path / "lost").exists()
    assert result["rounds_with_fewer_clients"] == [], "it is told everything again in the same round"
    (loss,) = result["lost_states"]
    assert (loss["task"], loss["round"], loss["client"]) == (2, 2, VICTIM)
    left = loss["exemplars"]
    assert left == (4 if method == "fedcbdr+feat" else 0), "of six; those of the others"
    assert f"lost its state in task 2, round 2: {left} exemplars" in " ".join(read_run(tmp_path / "run").missing)


def test_two_of_three_clients_that_lost_their_states_do_not_end_the_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config_for(tmp_path, "fedlwf"), {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    lost: set[int] = set()

    def lose(header: Any) -> None:
        place, client = (header["task"], header["round"], header["op"]), header["client"]
        if place == (1, 1, "train") and client != VICTIM and client not in lost:
            lost.add(client)
            shutil.rmtree(tmp_path / f"client{client}" / header["run"] / "store")
            (node,) = (n for n, c in nodes.items() if c.settings.client == client)
            nodes[node] = local_nodes(tmp_path, tmp_path / "toy.npz")[node]

    result = run_in(tmp_path / "run", WatchedGrid(nodes, before=lose, after=lambda header: True))
    assert result["rounds_with_fewer_clients"] == []
    assert [loss["client"] for loss in result["lost_states"]] == [0, 2]


def test_a_state_is_lost_once_per_task_and_not_in_every_round(tmp_path: Path) -> None:
    config = config_for(tmp_path, "replay", {"train": {"rounds": 3}})
    RunFolder.create(tmp_path / "run", config, {})
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    liar = nodes[NODE + VICTIM]
    answer = {"failed": "its state is lost", "forgot": True, "generation": 0, "exemplars": 0}
    liar.ask = lambda header, request: (answer, pack({}))  # type: ignore[method-assign]
    grid = LocalGrid(nodes)
    result = run_in(tmp_path / "run", grid)
    assert [loss["task"] for loss in result["lost_states"]] == [1, 2]
    asked = [kind for node, kind in grid.asked if node == NODE + VICTIM and kind == "ask"]
    assert len(asked) == 3 + 1 + 3 + 2, "every round, one end of a task, and once more in each task"


@pytest.mark.parametrize("reopened", [False, True])
def test_a_request_that_differs_after_a_restart_is_no_loss(reopened: bool, tmp_path: Path) -> None:
    config = config_for(tmp_path, "fedcbdr")
    expected = uninterrupted(tmp_path, "fedcbdr")
    nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    RunFolder.create(tmp_path / "run", config, {})

    def late_then_killed(header: Any) -> bool:
        if (header["op"], header["client"]) == ("keep_by_leverage", 2):
            raise Killed
        return (header["op"], header["client"]) != ("masked_features", VICTIM)

    with pytest.raises(Killed):
        run_in(tmp_path / "run", WatchedGrid(nodes, after=late_then_killed))
    if reopened:
        nodes = local_nodes(tmp_path, tmp_path / "toy.npz")
    # Now all clients reply, so the server asks for other blocks of the same matrix.
    result = run_in(tmp_path / "run", LocalGrid(nodes))
    assert result["rounds_with_fewer_clients"] == []
    assert same_outcome(tmp_path / "run", result, expected)


def test_another_request_is_no_loss_though_the_state_goes_back(tmp_path: Path) -> None:
    config = config_for(tmp_path, "replay")
    client = local_nodes(tmp_path, tmp_path / "toy.npz", 1)[NODE]
    client.hello({"protocol": PROTOCOL, "run": "r1", "config": config_to_send(config)})
    header = {"run": "r1", "op": "keep_random", "task": 0, "round": 1, "client": 0, "generation": 0}
    first = client.ask(header, pack({"quota": 3}))[0]
    assert (first["generation"], first["exemplars"]) == (1, 3)
    second = client.ask({**header, "generation": 1}, pack({"quota": 2}))[0]
    assert "failed" not in second
    assert (second["generation"], second["exemplars"]) == (1, 2)
    assert client.ask({**header, "op": "other", "generation": 2}, pack({}))[0]["forgot"]


@pytest.mark.parametrize("killed", [False, True])
def test_a_state_lost_at_the_end_of_a_task_is_made_up_for_in_the_next(killed: bool, tmp_path: Path) -> None:
    owners = write_owners(tmp_path / "data")
    config = own_config("lander", federation={**QUICK, "quorum": 0.5})
    RunFolder.create(tmp_path / "run", config, {})
    done: set[str] = set()

    def owner(client: int) -> FederationClient:
        name, path = list(owners.items())[client]
        return FederationClient(ClientSettings(tmp_path / f"client{client}", name, client, device="cpu"), path)

    def lose(header: Any) -> None:
        if (header["task"], header["op"], header["client"]) == (0, "evaluate", VICTIM) and "lost" not in done:
            done.add("lost")
            shutil.rmtree(tmp_path / f"client{VICTIM}" / header["run"] / "store")
            nodes[NODE + VICTIM] = owner(VICTIM)

    def kill(header: Any) -> bool:
        if killed and (header["task"], header["op"]) == (1, "train") and "killed" not in done:
            done.add("killed")
            raise Killed
        return True

    nodes = {NODE + k: owner(k) for k in range(len(owners))}
    if killed:
        with pytest.raises(Killed):
            run_in(tmp_path / "run", WatchedGrid(nodes, before=lose, after=kill))
    result = run_in(tmp_path / "run", WatchedGrid(nodes, before=lose, after=kill))
    assert "lost" in done
    assert result["rounds_with_fewer_clients"] == []
    assert [(loss["task"], loss["client"]) for loss in result["lost_states"]] == [(1, VICTIM)]


def test_a_folder_of_a_run_on_other_images_of_ones_own_is_refused(tmp_path: Path) -> None:
    begun, other = (toy_config("finetune", data={"name": "npz", "path": f"{name}.npz"}) for name in ("one", "other"))
    RunFolder.create(tmp_path / "run", begun, {})
    assert deploy.prepare_run(begun, tmp_path / "run").config().data == begun.data
    with pytest.raises(CheckpointError, match=r"does not match the run begun here in data\.path"):
        deploy.prepare_run(other, tmp_path / "run")


def test_resume_names_the_command_that_continues_a_federation(tmp_path: Path) -> None:
    config = deploy.federated(toy_config("finetune", data={"path": str(write_toy(tmp_path / "toy.npz"))}))
    folder = deploy.prepare_run(config, tmp_path / "run")
    with pytest.raises(ConfigError, match=f"'fedfeat federate {folder.config_path} --out {folder.path}'"):
        resume(folder.path)
