from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedfeat.core.errors import DataError
from fedfeat.data import list_datasets
from fedfeat.data.download import DOWNLOADS, addresses, fetch

CONTENT = bytes(range(256)) * 4000
MD5, SHA256 = hashlib.md5(CONTENT).hexdigest(), hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """A real HTTP server whose faults can be chosen."""

    url: str = ""
    break_after: int | None = None
    ranges: bool = True
    wrong_range: bool = False
    content: bytes = CONTENT
    asked: list[str | None] = field(default_factory=list)


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            server.asked.append(asked)
            if self.path != "/file":
                self.send_error(404)
                return
            start = int(re.findall(r"\d+", asked)[0]) if asked and server.ranges else 0
            size = len(server.content)
            if start >= size:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start + server.wrong_range}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - start))
            self.end_headers()
            end = size if server.break_after is None else start + server.break_after
            self.wfile.write(server.content[start:end])

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
    state.url = f"http://127.0.0.1:{http.server_port}/file"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


@pytest.mark.parametrize("checksum", [MD5, SHA256, SHA256.upper()])
def test_whole_download(server: Server, tmp_path: Path, checksum: str):
    seen: list[tuple[int, int | None]] = []
    target = tmp_path / "new" / "folder" / "file"
    assert fetch(server.url, target, checksum, lambda done, total: seen.append((done, total))) == target
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert not part_of(target).exists()


def test_a_present_file_is_not_fetched_again(server: Server, tmp_path: Path):
    target = tmp_path / "file"
    target.write_bytes(CONTENT)
    fetch(server.url, target, MD5)
    assert server.asked == []
    target.write_bytes(b"damaged")
    fetch(server.url, target, MD5)
    assert target.read_bytes() == CONTENT


def test_broken_connection_then_resume(server: Server, tmp_path: Path):
    target = tmp_path / "file"
    server.break_after = 300_000
    with pytest.raises(DataError, match=r"broke off.*run the same command again and it resumes.*--url.*data\.path"):
        fetch(server.url, target, MD5)
    assert not target.exists()
    assert part_of(target).stat().st_size == 300_000
    server.break_after = None
    seen: list[tuple[int, int | None]] = []
    fetch(server.url, target, MD5, lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]
    assert seen[0][0] > 300_000
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_server_without_ranges_starts_over(server: Server, tmp_path: Path):
    target, server.ranges = tmp_path / "file", False
    part_of(target).write_bytes(CONTENT[:1000])
    fetch(server.url, target, MD5)
    assert target.read_bytes() == CONTENT


def test_server_that_sends_another_part_is_not_believed(server: Server, tmp_path: Path):
    target, server.wrong_range = tmp_path / "file", True
    part_of(target).write_bytes(CONTENT[:1000])
    with pytest.raises(DataError, match="another part of the file"):
        fetch(server.url, target, MD5)
    assert part_of(target).read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"more"])
def test_a_part_that_is_whole_or_too_long(server: Server, tmp_path: Path, left: bytes):
    target = tmp_path / "file"
    part_of(target).write_bytes(left)
    fetch(server.url, target, MD5)
    assert target.read_bytes() == CONTENT


def test_wrong_checksum_removes_the_file(server: Server, tmp_path: Path):
    server.content = CONTENT[:-1] + b"!"
    with pytest.raises(DataError, match=f"does not have the checksum {MD5} and was removed"):
        fetch(server.url, tmp_path / "file", MD5)
    assert list(tmp_path.iterdir()) == []


def test_missing_page(server: Server, tmp_path: Path):
    with pytest.raises(DataError, match="the server answered 404"):
        fetch(server.url + "s", tmp_path / "file", MD5)


def test_no_server_at_all(tmp_path: Path):
    with pytest.raises(DataError, match=r"cannot be reached \(.*refused.*--url.*data\.path"):
        fetch("http://127.0.0.1:1/file", tmp_path / "file", MD5)


def test_other_schemes_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="starts with http"):
        fetch("file:///etc/hostname", tmp_path / "file", MD5)


def test_a_target_that_cannot_be_written(server: Server, tmp_path: Path):
    (tmp_path / "blocked").write_text("a file")
    with pytest.raises(DataError, match="cannot be written"):
        fetch(server.url, tmp_path / "blocked" / "file", MD5)


def test_official_files_have_names_that_the_readers_look_for():
    from fedfeat.data import svhn
    from fedfeat.data.cifar import CIFAR10, CIFAR100
    from fedfeat.data.idx import ARCHIVE, EMNIST, FASHION_MNIST, MNIST
    from fedfeat.data.tiny_imagenet import ARCHIVE as TINY

    names = {name: {file.file_name for file in files} for name, files in DOWNLOADS.items()}
    assert names["cifar10"] <= set(CIFAR10.archives)
    assert names["cifar100"] <= set(CIFAR100.archives)
    assert names["tiny-imagenet"] == {TINY}
    assert names["svhn"] == set(svhn.FILES)
    for layout in (MNIST, FASHION_MNIST):
        assert names[layout.name] == {f"{member}.gz" for member in layout.members}
    assert all(names[layout.name] == {ARCHIVE} for layout in EMNIST)
    assert all(len(file.md5) == 32 for files in DOWNLOADS.values() for file in files)


def test_every_set_that_needs_a_download_has_one():
    assert {info.name for info in list_datasets() if info.needs == "download"} == set(DOWNLOADS)


def test_a_mirror_of_several_files_is_a_folder():
    assert addresses("svhn", "http://here/numbers/") == [
        "http://here/numbers/train_32x32.mat",
        "http://here/numbers/test_32x32.mat",
    ]
    assert addresses("emnist-letters", "http://here/any.zip") == ["http://here/any.zip"]
