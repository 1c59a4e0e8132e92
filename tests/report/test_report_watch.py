"""Watching: a page that follows real runs in another process, on this machine alone, without touching them."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from browsing import Visit, chart

from fedfeat.report.collect import find_runs
from fedfeat.report.watch import PageServer, live_data

PYTHON = (sys.executable, "-m", "fedfeat")


@pytest.fixture
def serve(tmp_path: Path):
    """Start a server over some folders in a thread."""
    started = []

    def begin(*folders: Path) -> PageServer:
        server = PageServer(folders)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        started.append(server)
        return server

    yield begin
    for server in started:
        server.shutdown()
        server.server_close()


def ask(server: PageServer, path: str = "/data.json", method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    return connection.getresponse()


def test_it_listens_on_loopback_alone_and_answers_to_its_own_name(make_run, serve):
    server = serve(make_run())
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_port
    statuses = {
        host: ask(server, Host=host).status
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"evil.example:{port}", "127.0.0.1", "")
    }
    assert list(statuses.values()) == [200, 200, 403, 403, 403]
    assert ask(server, "/../config.toml").status == 404
    assert ask(server, "/", "POST").status == 501
    answer = ask(server, "/")
    assert "frame-ancestors 'none'" in answer.getheader("Content-Security-Policy")
    assert b"connect-src 'self'" in answer.read()


def test_data_are_sent_again_only_when_a_file_changed(make_run, serve):
    path = make_run("fedcbdr+feat", gain=6.0)
    server = serve(path)
    first = ask(server)
    version = first.getheader("ETag")
    assert json.loads(first.read())["live"] == "All runs are finished"
    assert ask(server, If_None_Match=version).status == 304
    (path / "result.json").unlink()
    second = ask(server, If_None_Match=version)
    data = json.loads(second.read())
    assert second.getheader("ETag") != version
    assert data["live"] == "Live"
    assert data["progress"][0]["text"] == "task 2 of 2, round 2, 900 images/s"
    assert data["missing"] == []  # a run that goes on misses nothing


def test_a_folder_may_come_later_and_hold_several_runs(make_run, serve, tmp_path: Path):
    server = serve(tmp_path / "runs")
    data = json.loads(ask(server).read())
    assert data["title"] == "Waiting for a run"
    assert data["headline"] == [f"{tmp_path / 'runs'}: waiting for a run to begin in it."]
    make_run("finetune")
    make_run("fedcbdr")
    assert len(json.loads(ask(server).read())["groups"]) == 2


def test_before_the_first_event_the_scenario_is_there(make_run):
    path = make_run()
    for name in ("events.jsonl", "result.json"):
        (path / name).unlink()
    data = live_data(find_runs([path]))
    assert data["progress"][0] | {"folder": ""} == {
        "name": "fedcbdr, seed 0",
        "folder": "",
        "done": 0,
        "all": 0,
        "text": "no round finished yet",
    }
    assert data["scenarios"]
    assert data["missing"] == []


def watch(*arguments: object) -> tuple[subprocess.Popen, str]:
    """Start the command and return it with the address that it says."""
    command = subprocess.Popen(
        [*PYTHON, "watch", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    line = command.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert found, line + command.stderr.read()
    return command, found[0]


@pytest.mark.processes
def test_ctrl_c_ends_cleanly_and_a_taken_port_is_one_sentence(tmp_path: Path):
    command, address = watch(tmp_path / "runs")
    port = address.rstrip("/").rpartition(":")[2]
    second = subprocess.run([*PYTHON, "watch", str(tmp_path), "--port", port], capture_output=True, text=True)
    assert second.returncode == 2
    assert second.stderr.startswith(f"error: --port {port}: cannot be used")
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert (command.returncode, err) == (0, "")
    assert "stopped watching; the runs go on" in out


@pytest.mark.browser
@pytest.mark.processes
def test_the_page_follows_a_real_run_in_another_process(visit: Visit, tmp_path: Path):
    folder = tmp_path / "runs" / "one"
    command, address = watch(tmp_path / "runs")
    # Many rounds: a page that looks once a second has to find it at work.
    settings = ("method=fedcbdr+feat", "train.rounds=8", "train.local_epochs=1", "scenario.tasks=3")
    running = None
    run = [*PYTHON, "run", "digits", *(f"--set={s}" for s in settings), "--out", str(folder)]
    try:
        page = visit.open(address)
        assert page.locator("#title").inner_text() == "Waiting for a run"
        page.evaluate("() => { window.sameDocument = true; }")
        running = subprocess.Popen(run, stdout=subprocess.DEVNULL)
        page.wait_for_function("() => document.querySelector('#progress')?.innerText.includes('of 3')")
        page.wait_for_selector("#figure-accuracy")
        page.wait_for_function("() => document.getElementById('live').textContent === 'All runs are finished'")
        assert running.wait(timeout=120) == 0
        result = json.loads((folder / "result.json").read_text())
        page.wait_for_selector("#figure-confusion")
        (line,) = (t for t in chart(page, "accuracy")["data"] if t.get("mode") == "lines+markers")
        assert line["y"] == pytest.approx(result["accuracy_after_task"], abs=0.01)
        assert page.locator("#progress").is_hidden()
        assert page.locator("#prediction input:checked").get_attribute("value") == "own"
        assert page.evaluate("window.sameDocument")  # updated, not loaded again
        assert visit.complaints == []
        command.send_signal(signal.SIGINT)
        command.wait(timeout=60)
        page.wait_for_function("() => document.getElementById('live').textContent.startsWith('Connection lost')")
        assert page.locator("#figure-accuracy").is_visible()
    finally:
        for process in filter(None, (command, running)):
            process.kill()
            process.wait()
