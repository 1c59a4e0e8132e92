"""Clients that fail, processes that are killed: the run completes, and says in which rounds who was missing.

A federation that lost clients must equal the simulation in which the same clients drop out of the same exchanges, to
the last bit. One that lost none of its rounds must equal the undisturbed simulation.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from chaos import CLIENTS, Hurt, hurt_federation, kill, simulated, toy
from federations import eventually, processes_that_mention

from attack_table import Recorder
from fedfeat.config.config import load_config
from fedfeat.core.errors import FedfeatError
from fedfeat.engines.flower.addresses import free_port
from fedfeat.engines.flower.processes import GatewayProcess
from fedfeat.runs import deploy
from fedfeat.runs.experiment import Result
from fedfeat.runs.folder import RunFolder
from toy_runs import weights

STORM = 34  # kills of the storm; with those of the tests before it 41
FAULT_OUTCOME = "the run ends; accuracies and weights equal the simulation with the same drop-outs, bit for bit"
DIGITS = Path(__file__).resolve().parents[3] / "configs" / "digits.toml"
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def in_background(hurt: Hurt) -> Future[Result]:
    """Start the run, so that something can be done to it meanwhile."""
    return ThreadPoolExecutor(1).submit(hurt.run)


def rounds(hurt: Hurt) -> list[dict[str, Any]]:
    """Return the events of the rounds so far."""
    return [e for e in RunFolder(hurt.run_folder / "run").events() if e["event"] == "round"]


def short_of(result: Result) -> dict[str, dict[str, list[str]]]:
    """Return who failed and who was missing, by TASK.ROUND.OP."""
    return {
        f"{s['task']}.{s['round']}.{s['op']}": {fate: sorted(s[fate]) for fate in ("failed", "missing")}
        for s in result["rounds_with_fewer_clients"]
    }


def assert_equals_simulation(hurt: Hurt, result: Result) -> None:
    """Compare with the simulator, given the drop-outs that the federation recorded."""
    expected = simulated(hurt.config, hurt.run_folder / "simulated", result["rounds_with_fewer_clients"])
    assert result["accuracy_matrix"] == expected["accuracy_matrix"]
    assert weights(hurt.run_folder / "run") == weights(hurt.run_folder / "simulated")
    there = [e for e in RunFolder(hurt.run_folder / "simulated").events() if e["event"] == "round"]
    for mine, simulation in zip(rounds(hurt), there, strict=True):
        for key in ("task", "round", "clients", "replied", "samples", "losses"):
            assert mine[key] == simulation[key], (mine["task"], mine["round"], key)


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hurt]:
    """One federation with a database whose clients fail in task 2, and take their time in round 2 of task 1."""
    folder = tmp_path_factory.mktemp("chaos")
    faults: dict[int, dict[str, Any]] = {
        0: {"1.2.train": 3.0, "2.1.train": "raise"},
        1: {"1.2.train": 3.0, "2.1.train": "nan"},
        2: {"1.2.train": 3.0, "2.2.train": 15.0},
    }
    with hurt_federation(toy(folder, "refed+feat"), folder, faults) as hurt:
        yield hurt
    assert processes_that_mention(str(folder)) == []


def again(hurt: Hurt, folder: Path, method: str, **changes: Any) -> Hurt:
    """Return the same federation with another experiment, in a run folder of its own."""
    return replace(hurt, config=deploy.federated(toy(hurt.folder, method, **changes)), run_folder=folder)


def test_a_superlink_that_is_killed_in_a_round_changes_nothing(hurt: Hurt, tmp_path: Path) -> None:
    hurt = again(hurt, tmp_path, "refed+feat", federation={"deadline": 120.0}, scenario={"tasks": 1})
    run = in_background(hurt)
    # A request that is on its way when the SuperLink dies is lost, so let every client have its own.
    markers = [hurt.marker(client, "1.2.train") for client in range(CLIENTS)]
    eventually(lambda: all(marker.exists() for marker in markers), 120, "the second round on every client")
    kill(hurt.server.link.pid)
    result = run.result(240)
    assert result["rounds_with_fewer_clients"] == []
    assert_equals_simulation(hurt, result)


def test_clients_that_raise_send_nan_or_are_late_are_left_out_of_that_round_only(hurt: Hurt, tmp_path: Path) -> None:
    few = {"federation": {"deadline": 12.0, "quorum": 0.3}, "scenario": {"tasks": 2}, "train": {"rounds": 3}}
    hurt = again(hurt, tmp_path, "fedcbdr+feat", **few)
    result = hurt.run()
    assert short_of(result) == {
        "2.1.train": {"failed": ["0", "1"], "missing": []},
        "2.2.train": {"failed": [], "missing": ["2"]},
    }
    reasons = result["rounds_with_fewer_clients"][0]["failed"]
    assert "out of memory" in reasons["0"]
    assert "weights: not a finite number" in reasons["1"]
    assert [(e["clients"], e["replied"]) for e in rounds(hurt)] == [(3, 3)] * 3 + [(3, 1), (3, 2), (3, 3)]
    assert_equals_simulation(hurt, result)
    undisturbed = simulated(hurt.config, tmp_path / "undisturbed", [])
    assert result["accuracy_matrix"][0] == undisturbed["accuracy_matrix"][0], "the first task was not affected"
    assert weights(hurt.run_folder / "run") != weights(tmp_path / "undisturbed"), "the second was"


def fedfeat(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "fedfeat", *map(str, arguments)]


@contextmanager
def command(log: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of our commands, its output in a file; it is stopped in the end if it still runs."""
    with log.open("ab") as file:
        process = subprocess.Popen(fedfeat(*arguments), stdout=file, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)  # a shell's background jobs would not hear Ctrl-C
        process.wait(60)


def events_in(folder: Path) -> int:
    return len(RunFolder(folder).events())


def test_federate_that_is_killed_leaves_nothing_behind_and_continues(tmp_path: Path) -> None:
    """On the digits, as the documents show it."""
    smaller = ["scenario.tasks=2", "scenario.clients=2", "train.rounds=3", "train.local_epochs=1"]
    config = load_config(DIGITS, smaller)
    run, log = tmp_path / "run", tmp_path / "output.txt"
    given = [word for change in smaller for word in ("--set", change)]
    start = ("federate", DIGITS, *given, "--clients", "2", "--device", "cpu", "--out", run)

    def told() -> int:
        return log.read_text().count("task 1/2 round 1/3")

    with command(log, *start) as process:
        eventually(lambda: (events_in(run) >= 3 and told()) or process.poll() is not None, 180, "two rounds")
        assert process.poll() is None, log.read_text()
        kill(process.pid)
        process.wait()
        eventually(lambda: processes_that_mention(str(run)) == [], 30, "the end of everything it started")
        assert not (run / "result.json").exists()
    start += ("--set", "federation.deadline=500")  # nothing that changes a result
    with command(log, *start) as process:
        assert process.wait(240) == 0, log.read_text()
    said = log.read_text()
    assert "resuming in task" in said
    assert "2 of 2 clients" in said
    assert "final accuracy" in said
    assert "Traceback" not in said
    assert (run / "report.html").exists()
    assert "deadline = 500" in (run / "config.toml").read_text()
    result = json.loads((run / "result.json").read_text())
    assert result["rounds_with_fewer_clients"] == []
    assert_equals_simulation(Hurt(deploy.federated(config), tmp_path, tmp_path, None, []), result)  # type: ignore[arg-type]
    assert told() == 1, "a finished round is not repeated"
    assert processes_that_mention(str(tmp_path)) == []


def test_a_client_waits_for_its_server_and_is_stopped_as_a_service_is(tmp_path: Path) -> None:
    address, log, state = f"127.0.0.1:{free_port()}", tmp_path / "output.txt", tmp_path / "state"
    with command(log, "client", "--server", address, "--name", "early", "--state", state, "--device", "cpu") as process:
        eventually((state / "early.state.json").exists, 120, "the start of the client's own process")
        assert processes_that_mention(str(state))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130, log.read_text()
    assert f"nobody answers at {address} yet; waiting" in log.read_text()
    assert "stopped; the same command continues from where it stopped" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert processes_that_mention(str(state)) == []


@pytest.mark.chaos
def test_commands_across_machines_with_keys_and_a_server_that_is_killed(
    tmp_path: Path, record_attack: Recorder
) -> None:
    """What the guide says to type, with the loopback interface in the place of a network."""
    config = toy(tmp_path, "refed+feat", scenario={"tasks": 2}, train={"rounds": 3})
    (tmp_path / "toy.toml").write_text(config.to_toml())
    made, run, port = tmp_path / "keys", tmp_path / "run", str(free_port())
    subprocess.run(fedfeat("keys", "--out", made, "--host", "localhost", "--clients", "3"), check=True)
    address = f"127.0.0.1:{port}"
    start = ("server", tmp_path / "toy.toml", "--keys", made / "server", "--listen", address, "--out", run)
    with ExitStack() as stack:
        for k in range(3):
            where = ("--keys", made / "clients" / f"client-{k}", "--state", tmp_path / f"state-{k}")
            what = (
                "client",
                "--server",
                address,
                "--data",
                tmp_path / "toy.npz",
                "--client",
                str(k),
                "--device",
                "cpu",
            )
            stack.enter_context(command(tmp_path / f"client-{k}.txt", *what, *where))
        with command(tmp_path / "server.txt", *start) as process:
            eventually(lambda: events_in(run) >= 3 or process.poll() is not None, 120, "two rounds")
            assert process.poll() is None, (tmp_path / "server.txt").read_text()
            kill(process.pid)
            process.wait()
        with command(tmp_path / "server.txt", *start) as process:
            assert process.wait(300) == 0, (tmp_path / "server.txt").read_text()
    hurt = Hurt(deploy.federated(config), tmp_path, tmp_path, None, [])  # type: ignore[arg-type]
    assert_equals_simulation(hurt, json.loads((run / "result.json").read_text()))
    assert "leaves this client: model weights" in (tmp_path / "client-0.txt").read_text()
    record_attack("fault", "the server's command is killed", FAULT_OUTCOME)


@pytest.mark.chaos
@pytest.mark.parametrize("secure", [False, True])
def test_a_client_that_is_killed_in_a_round_misses_it_and_comes_back(
    tmp_path: Path, secure: bool, record_attack: Recorder
) -> None:
    config = toy(tmp_path, "fedlwf", federation={"deadline": 180.0, "wait": 180.0}, train={"rounds": 4})
    # With keys, it is let in again when its last session has expired: another client is slow, so that there is time.
    # Not as slow as the 30 s after which it would count as silent.
    slow = {"1.4.train": 25.0, "2.1.train": 15.0} if secure else {"1.4.train": 10.0}
    faults: dict[int, dict[str, Any]] = {0: slow, 1: {"1.2.train": "hang"}}
    with hurt_federation(config, tmp_path, faults, secure=secure) as hurt:
        run = in_background(hurt)
        eventually(hurt.marker(1, "1.2.train").exists, 90, "the client in the middle of its round")
        kill(hurt.clients[1].pid)
        result = run.result(400)
    assert short_of(result)["1.2.train"] == {"failed": [], "missing": ["1"]}
    assert hurt.clients[1].state()["starts"] >= 2
    assert rounds(hurt)[-1]["replied"] == 3, "it is back at the end"
    assert_equals_simulation(hurt, result)
    how = "with keys" if secure else "without keys"
    record_attack(
        "fault",
        f"a client is killed in a round, {how}",
        "it misses rounds until it is back; the rest equals the simulation",
    )


@pytest.mark.chaos
@pytest.mark.parametrize("secure", [False, True])
def test_a_superlink_that_forgets_everything_costs_a_round_and_nothing_else(
    tmp_path: Path, secure: bool, record_attack: Recorder
) -> None:
    config = toy(tmp_path, "fedcbdr+feat", federation={"deadline": 180.0, "wait": 180.0}, scenario={"tasks": 2})
    with hurt_federation(config, tmp_path, {0: {"1.2.train": 3.0}}, secure=secure, database=False) as hurt:
        run = in_background(hurt)
        eventually(lambda: len(rounds(hurt)) >= 1, 90, "the first round")
        kill(hurt.server.link.pid)
        result = run.result(400)
    assert result["rounds_with_fewer_clients"] == []
    assert_equals_simulation(hurt, result)
    how = "with keys" if secure else "without keys"
    record_attack("fault", f"the SuperLink is killed and forgets everything, {how}", FAULT_OUTCOME)


@pytest.mark.chaos
def test_a_gateway_that_is_killed_in_a_round_changes_nothing(tmp_path: Path, record_attack: Recorder) -> None:
    config = toy(tmp_path, "fedcbdr+feat", federation={"deadline": 180.0})
    places = ("1.2.train", "2.1.train")
    with hurt_federation(config, tmp_path, {0: dict.fromkeys(places, 8.0)}, secure=True) as hurt:
        run = in_background(hurt)
        for place in places:
            eventually(hurt.marker(0, place).exists, 120, f"a client at work in {place}")
            time.sleep(3.0)  # a message that is on its way when the gateway dies is lost; none is any more
            kill(gateway_pid(hurt))
        result = run.result(300)
    assert result["rounds_with_fewer_clients"] == []
    assert_equals_simulation(hurt, result)
    record_attack("fault", "the gateway is killed in a round", "it is started again; nothing is lost", 2)


def gateway_pid(hurt: Hurt) -> int:
    """Return the process of the gateway, which its guard notes in a file."""
    return GatewayProcess(hurt.server.link.folder, hurt.server.link, host="127.0.0.1").pid


def run_as_a_service(hurt: Hurt) -> Result:
    """Start the run again when too few clients were left, as systemd would."""
    while True:
        try:
            return hurt.run()
        except FedfeatError as error:
            if "federation.quorum" not in str(error):
                raise


@pytest.mark.chaos
def test_a_storm(tmp_path: Path, record_attack: Recorder) -> None:
    """Anybody may be killed at any moment, again and again; what comes out is a simulation with some drop-outs."""
    draw, kills = random.Random(7), Counter[str]()
    settings = {"deadline": 20.0, "quorum": 0.3, "wait": 180.0}
    config = toy(tmp_path, "refed+feat", federation=settings, train={"rounds": 40})
    slow = {f"{task}.{round}.train": 1.0 for task in (1, 2, 3) for round in range(1, 41)}
    with hurt_federation(config, tmp_path, dict.fromkeys(range(CLIENTS), slow), secure=True) as hurt:
        run = ThreadPoolExecutor(1).submit(run_as_a_service, hurt)
        eventually(lambda: len(rounds(hurt)) >= 1, 90, "the first round")
        while kills.total() < STORM and not run.done():
            victims = {"SuperLink": hurt.server.link.pid, "gateway": gateway_pid(hurt)}
            victims |= {f"client {k}": client.pid for k, client in enumerate(hurt.clients)}
            victim = draw.choice(sorted(name for name, pid in victims.items() if pid))
            with suppress(ProcessLookupError):
                kill(victims[victim])
                kills[victim.split()[0]] += 1
            time.sleep(draw.uniform(1.5, 4.0))
        result = run.result(900)
    assert kills.total() == STORM, kills
    assert_equals_simulation(hurt, result)
    told = ", ".join(f"{count} x {name}" for name, count in sorted(kills.items()))
    record_attack("fault", f"kills at any moment ({told})", FAULT_OUTCOME, STORM)
