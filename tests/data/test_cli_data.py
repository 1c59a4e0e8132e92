from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedfeat.cli.data import app
from fedfeat.core.errors import DataError, FedfeatError
from fedfeat.data import download
from fedfeat.data.idx import MNIST
from idx_files import arrays, idx


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, FedfeatError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def mirror(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mirror that serves a small stand-in for the official archive, with its checksum made official."""
    folder = tmp_path_factory.mktemp("mirror")
    archive = folder / "mirrored.tar.gz"
    archive.write_bytes(b"archive" * 1000)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    entry = dataclasses.replace(download.DOWNLOADS["cifar10"][0], md5=md5)
    monkeypatch.setitem(download.DOWNLOADS, "cifar10", (entry,))
    with serving(folder) as url:
        yield f"{url}/{archive.name}"


def test_get_from_a_mirror_into_the_data_folder(mirror: str, data_home: Path):
    out = run("get", "cifar10", "--url", mirror)
    target = data_home / "data" / "cifar10" / "cifar-10-binary.tar.gz"
    assert target.read_bytes() == b"archive" * 1000
    assert str(target) in out


def test_get_several_files_then_use_them(data_home: Path, monkeypatch: pytest.MonkeyPatch):
    """A mirror is a folder here; one file that it lacks, or that is another, is one sentence."""
    served = data_home / "served"
    served.mkdir()
    files = {f"{name}.gz": gzip.compress(idx(array)) for name, array in zip(MNIST.members, arrays(MNIST), strict=True)}
    entries = [download.Download(f"http://official/{n}", hashlib.md5(d).hexdigest()) for n, d in files.items()]
    monkeypatch.setitem(download.DOWNLOADS, "mnist", tuple(entries))
    *most, last = files
    for name in most:
        (served / name).write_bytes(files[name])
    with serving(served) as url:
        with pytest.raises(DataError, match=f"{last}: the server answered 404 File not found; try later"):
            run("get", "mnist", "--url", url)
        (served / last).write_bytes(b"another file")
        with pytest.raises(DataError, match=f"{last}: the downloaded file does not have the checksum"):
            run("get", "mnist", "--url", url)
        (served / last).write_bytes(files[last])
        assert str(data_home / "data" / "mnist") in run("get", "mnist", "--url", f"{url}/")
    assert "10 classes, images 28x28x1" in run("check", "mnist")


def test_get_to_a_folder_with_the_mirror_from_the_environment(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEDFEAT_DATA_URL", mirror)
    out = run("get", "cifar10", "--to", str(tmp_path))
    assert (tmp_path / "cifar-10-binary.tar.gz").exists()
    assert "data.path" in out


def test_get_what_cannot_be_got():
    assert "built in" in run("get", "digits")
    with pytest.raises(DataError, match="your own data and has no download"):
        run("get", "npz")
    with pytest.raises(DataError, match="did you mean 'cifar100'"):
        run("get", "cifar1000")


def test_check_prints_counts_size_and_fingerprint():
    out = run("check", "digits")
    assert "10 classes, images 8x8x1" in out
    assert "1352 images, 131 to 138 per class" in out
    assert "sha256 1a915c832dd7e63a" in out


def test_check_as_json_with_a_path(tmp_path: Path):
    x, y = np.zeros((4, 3, 3, 1), np.uint8), np.array([0, 1, 1, 1])
    np.savez(tmp_path / "a.npz", x=x, y=y, xt=x, yt=y)
    report = json.loads(run("check", "npz", "--path", str(tmp_path / "a.npz"), "--json"))
    assert report["status"] == "ok"
    assert report["train"] == {"images": 4, "per_class_min": 1, "per_class_max": 3}
    assert len(report["sha256"]) == 64


def test_check_everything_says_what_is_missing():
    out = run("check")
    assert "digits: 10 classes" in out
    assert "cifar100: missing; run: fedfeat data get cifar100" in out
    reports = json.loads(run("check", "--json"))
    assert [r["status"] for r in reports] == ["ok", *["missing"] * len(download.DOWNLOADS), "ok"]


def test_check_everything_reports_damage_and_fails(data_home: Path):
    folder = data_home / "data" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "cifar-10-binary.tar.gz").write_text("broken")
    with pytest.raises(DataError, match="cannot be used: cifar10"):
        run("check")


def test_check_path_without_a_name():
    with pytest.raises(DataError, match="needs the name"):
        run("check", "--path", "somewhere")


def test_list_names_every_set():
    out = run("list")
    for name in ("digits", "cifar10", "cifar100", "tiny-imagenet", "parquet", "npz", "folder"):
        assert name in out
