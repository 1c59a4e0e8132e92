"""Fetch the official files: streamed, resumed where it broke off, checked before it gets its name."""

from __future__ import annotations

import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfeat import __version__
from fedfeat.core.errors import DataError

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and the bytes expected in all (None if the server does not say)."""

CHUNK = 1 << 18
TIMEOUT_SECONDS = 30
NETWORK_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


@dataclass(frozen=True)
class Download:
    """An official file and the md5 its authors publish or that is known of it."""

    url: str
    md5: str

    @property
    def file_name(self) -> str:
        """The name under which the file is kept."""
        return self.url.rpartition("/")[2]


def _files(folder: str, *named: tuple[str, str]) -> tuple[Download, ...]:
    return tuple(Download(folder + name, md5) for name, md5 in named)


# Checksums of the MNIST family and of SVHN are those in the source of torchvision, which reads the same files.
_EMNIST = _files("https://biometrics.nist.gov/cs_links/EMNIST/", ("gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e"))
DOWNLOADS: dict[str, tuple[Download, ...]] = {
    "mnist": _files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    "fashion-mnist": _files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    **{f"emnist-{split}": _EMNIST for split in ("balanced", "byclass", "bymerge", "letters", "digits", "mnist")},
    "svhn": _files(
        "http://ufldl.stanford.edu/housenumbers/",
        ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    ),
    "cifar10": _files(
        "https://www.cs.toronto.edu/~kriz/", ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530")
    ),
    "cifar100": _files(
        "https://www.cs.toronto.edu/~kriz/", ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8")
    ),
    "tiny-imagenet": _files(
        "http://cs231n.stanford.edu/", ("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de")
    ),
}


def addresses(name: str, mirror: str | None = None) -> list[str]:
    """Return where the files of a data set are fetched; a mirror is one file, or the folder of several."""
    official = DOWNLOADS[name]
    if mirror is None:
        return [file.url for file in official]
    return [mirror] if len(official) == 1 else [f"{mirror.rstrip('/')}/{file.file_name}" for file in official]


def fetch(url: str, target: Path, checksum: str, progress: Progress | None = None) -> Path:
    """Download ``url`` to ``target`` unless it is there already; ``checksum`` is a sha256 or md5 in hex."""
    if not url.startswith(("http://", "https://")):
        raise DataError(f"{url}: expected an address that starts with http:// or https://; give another --url")
    if target.is_file() and _matches(target, checksum):
        return target
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _stream(url, part, progress or (lambda done, total: None))
    except urllib.error.HTTPError as error:
        raise DataError(
            f"{url}: the server answered {error.code} {error.reason}; try later or give a mirror with --url"
        ) from error
    except NETWORK_ERRORS as error:
        raise DataError(
            f"{url}: {_interrupted(part, error)}, give a mirror with --url, or copy the data set from elsewhere and "
            "set data.path to it"
        ) from error
    except OSError as error:
        raise DataError(f"{part}: cannot be written ({error}); free some space or choose another --to") from error
    if not _matches(part, checksum):
        part.unlink()
        raise DataError(
            f"{url}: the downloaded file does not have the checksum {checksum} and was removed; "
            "run the command again or give another --url"
        )
    return part.replace(target)


def _interrupted(part: Path, error: Exception) -> str:
    """Say whether anything came at all, and what to do about it."""
    if part.is_file() and part.stat().st_size:
        return f"the download broke off ({error}); run the same command again and it resumes"
    reason = getattr(error, "reason", error)
    return f"the server cannot be reached ({reason}); try again with a network"


def _matches(path: Path, checksum: str) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5" if len(checksum) == 32 else "sha256").hexdigest() == checksum.lower()


def _request(url: str, start: int) -> Any:
    headers = {"User-Agent": f"fedfeat/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)


def _stream(url: str, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    try:
        response = _request(url, done)
    except urllib.error.HTTPError as error:
        # 416: there is nothing after what we have, so it is whole or of another file.
        if error.code != 416 or not done:
            raise
        if error.headers.get("Content-Range", "").endswith(f"/{done}"):
            return
        done, response = 0, _request(url, 0)
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {done}-")
        if response.status == 206 and not resumed:
            raise http.client.HTTPException("the server sent another part of the file than asked for")
        done = done if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length and length.isdigit() else None
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress(done, total)
    if total is not None and done < total:
        raise http.client.IncompleteRead(b"", total - done)
