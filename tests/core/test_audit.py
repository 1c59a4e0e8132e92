"""The audit log: whole lines, whoever's words are in them, in a file that does not grow for ever."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedfeat.core.audit import AuditLog

FORGED = 'x"\n{"event": "joined"}\r\u2028\x1b[2J'


def lines_of(folder: Path) -> list[dict[str, object]]:
    texts = [path.read_text() for path in sorted(folder.glob("audit.jsonl*"))]
    return [json.loads(line) for text in texts for line in text.split("\n") if line]


def test_strangers_cannot_write_a_line_of_their_own(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.note("refused", name=FORGED, words=[FORGED] * 5000, by={FORGED: FORGED}, what=b"\n")
    (line,) = lines_of(tmp_path)
    assert line["event"] == "refused"
    text = (tmp_path / "audit.jsonl").read_text()
    assert text.isascii()
    assert text.count("\n") == 1
    assert len(text) < 100_000
    assert stat.S_IMODE((tmp_path / "audit.jsonl").stat().st_mode) == 0o600


def test_a_full_file_is_put_aside_once_and_no_line_is_torn(tmp_path: Path) -> None:
    def write(worker: int) -> None:
        log = AuditLog(tmp_path / "audit.jsonl", largest=20_000)
        for number in range(100):
            log.note("asked", worker=worker, number=number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    lines = lines_of(tmp_path)
    assert {line["event"] for line in lines} == {"asked"}
    assert sum(path.stat().st_size for path in tmp_path.glob("audit.jsonl*")) <= 40_000
    assert len(lines) > 200, "the newest are kept"
