"""Supervision: commands are started again, and nothing outlives the process that asked for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")
if not Path("/proc/self/stat").exists():
    pytest.skip("looks at processes in /proc", allow_module_level=True)

from federations import eventually, processes_that_mention, running

from fedfeat.core.errors import ConfigError
from fedfeat.engines.flower import guard
from fedfeat.engines.flower.addresses import join_address
from fedfeat.engines.flower.processes import Process, ProcessError, SuperLink, offline_environment
from fedfeat.runs.deploy import read_lines

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def shell(folder: Path, script: str) -> Process:
    return Process(folder, "job", ["/bin/sh", "-c", script])


def test_a_command_that_ends_is_started_again_and_its_output_is_kept(tmp_path: Path) -> None:
    with shell(tmp_path, "echo started; sleep 60") as job:
        first = job.pid
        eventually(lambda: "started" in job.log.read_text(), 30, "the first start")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: job.pid not in (0, first), 30, "a new start")
        assert job.alive()
        assert job.state()["last_exit"] == -signal.SIGKILL
        assert job.state()["starts"] == 2
        eventually(lambda: job.log.read_text().count("started") == 2)
    assert not job.alive()


def test_a_command_that_keeps_failing_is_started_less_and_less_often(tmp_path: Path) -> None:
    job = shell(tmp_path, "exit 3").start()
    try:
        time.sleep(4.0)
        assert job.state()["last_exit"] == 3
        # After 0 s, 1 s and 3 s; the next would come after 7 s.
        assert job.state()["starts"] == 3
    finally:
        job.stop()


def test_a_full_log_is_begun_anew_and_one_older_one_kept(tmp_path: Path) -> None:
    line = 99 * "x"
    text = f"import time\nfor _ in range(100_000): print({line!r})\ntime.sleep(1.5)\nprint('after')\ntime.sleep(60)"
    with Process(tmp_path, "talker", [sys.executable, "-uc", text]) as talker:
        eventually(lambda: (tmp_path / "talker.log.1").exists(), what="the log being put aside")
        eventually(lambda: talker.tail().endswith("after"), what="the command going on")
        assert talker.log.stat().st_size < guard.LARGEST_LOG < (tmp_path / "talker.log.1").stat().st_size
        assert "\0" not in talker.log.read_text()
        lines, position = read_lines(talker.log, 10**9)
        assert lines[-1] == "after"
        assert position == talker.log.stat().st_size


def test_a_command_that_need_not_be_started_again_is_not(tmp_path: Path) -> None:
    job = shell(tmp_path, f"exit {guard.FINAL}").start()
    eventually(lambda: not job.alive(), 10, "the end of its guard")
    assert (job.state()["starts"], job.state()["last_exit"]) == (1, guard.FINAL)
    job.stop()
    job.stop()


def test_a_command_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    job = Process(tmp_path, "job", [str(tmp_path / "missing")]).start()
    try:
        eventually(lambda: job.state()["last_exit"] == 127, 10, "the first end")
        assert "missing cannot be started" in job.tail()
    finally:
        job.stop()


def test_one_that_ends_while_starting_is_an_error_with_the_end_of_its_log(tmp_path: Path) -> None:
    class NeverReady(Process):
        def ready(self) -> bool:
            return False

    job = NeverReady(tmp_path, "job", ["/bin/sh", "-c", "echo the reason; exit 1"])
    with pytest.raises(ProcessError, match=r"(?s)job ended while starting.*the reason"), job:
        pytest.fail("it was never ready")
    assert not job.alive()
    slow = NeverReady(tmp_path, "slow", ["/bin/sleep", "60"])
    with pytest.raises(ProcessError, match=r"did not answer within 0\.2 s"):
        slow.start().wait_ready(0.2)
    slow.stop()


# One that ignores SIGTERM, in a session of its own, below another that does too.
STUBBORN = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000 & wait' & while true; do sleep 1; done"


def test_stopping_ends_the_whole_family_even_if_it_resists(tmp_path: Path) -> None:
    marker = f"0.{time.time_ns()}"  # `sleep` takes fractions, so the number finds its processes
    with shell(tmp_path, STUBBORN.replace("sleep 1000", f"sleep {marker[2:]}")):
        eventually(lambda: processes_that_mention(f"sleep {marker[2:]}"), 10, "the grandchild")
    assert processes_that_mention(marker[2:]) == []


def test_a_polite_command_may_clean_up(tmp_path: Path) -> None:
    with shell(tmp_path, "trap 'echo bye > bye; exit 0' TERM; echo ready > ready; while true; do sleep 0.1; done"):
        eventually((tmp_path / "ready").exists)
    assert (tmp_path / "bye").exists()


PARENT = """
import sys, time
from pathlib import Path
from fedfeat.engines.flower.processes import Process
script = "setsid sleep MARK & sleep MARK"
job = Process(Path(sys.argv[1]), "job", ["/bin/sh", "-c", script]).start().wait_ready()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_the_end_of_the_process_that_asked(tmp_path: Path, number: int) -> None:
    mark = str(time.time_ns())
    command = [sys.executable, "-c", PARENT.replace("MARK", mark), str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    eventually(lambda: len(processes_that_mention(f"sleep {mark}")) >= 2, 10, "both sleepers")
    parent.send_signal(number)
    parent.wait(10)
    parent.stdout.close()
    eventually(lambda: processes_that_mention(mark) == [], 15, "the end of the family")


def test_a_killed_guard_takes_its_command_along(tmp_path: Path) -> None:
    job = shell(tmp_path, "exec sleep 1000").start().wait_ready()
    pid = job.pid
    assert job._guard is not None
    job._guard.kill()
    eventually(lambda: not running(pid), 10, "the end of the command")
    job.stop()


def test_the_environment_keeps_flower_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet")
    environment = offline_environment(tmp_path)
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment["FLWR_HOME"] == str(tmp_path)
    assert environment["NO_PROXY"] == "intranet,127.0.0.1,localhost"


def test_addresses() -> None:
    assert join_address("fl.example.org", 9092) == "fl.example.org:9092"
    assert join_address("::1", 9092) == "[::1]:9092"


def test_a_port_in_use_is_refused_rather_than_taken_for_ours(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="Address already in use; choose another"),
    ):
        SuperLink(tmp_path, port=taken.getsockname()[1]).start()
