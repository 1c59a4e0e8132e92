"""Payloads and headers as Flower's records, and back.

Every record of a message is fetched by itself, so a small payload travels in one record with its header. A large one
travels as arrays, one per dtype, which Flower cuts into pieces.
"""

from __future__ import annotations

import json

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedfeat.engines.flower.codec import CodecError, Packed
from fedfeat.engines.flower.protocol import Header

ARRAYS, WORDS = "arrays", "words"
FLAT = "fedfeat.flat"  # how the bytes of an array are to be read: the numbers of one dtype, end to end
BUFFER = "buffer."  # prefix of buffers that travel with the header
SMALL = 1 << 20  # bytes


def to_records(header: Header, packed: Packed | None = None) -> RecordDict:
    """Return what a message carries."""
    packed = packed or Packed("[]", {})
    words = ConfigRecord({"header": json.dumps(header), "manifest": packed.manifest})
    if sum(map(len, packed.buffers.values())) <= SMALL:
        for name, data in packed.buffers.items():
            words[BUFFER + name] = data
        return RecordDict({WORDS: words})
    arrays = {name: Array(name, (len(data),), FLAT, data) for name, data in packed.buffers.items()}
    return RecordDict({WORDS: words, ARRAYS: ArrayRecord(arrays)})


def from_records(records: RecordDict) -> tuple[Header, Packed]:
    """Read a message; one that is not ours is refused."""
    try:
        words, arrays = records[WORDS], records.get(ARRAYS, ArrayRecord())
        if not (isinstance(words, ConfigRecord) and isinstance(arrays, ArrayRecord)):
            raise ValueError("records of another kind")
        header = json.loads(str(words["header"]))
        if not isinstance(header, dict) or any(array.stype != FLAT for array in arrays.values()):
            raise ValueError("unknown form")
        buffers = {name: array.data for name, array in arrays.items()}
        small = {k.removeprefix(BUFFER): v for k, v in words.items() if k.startswith(BUFFER)}
        buffers |= {name: data for name, data in small.items() if isinstance(data, bytes)}
        return header, Packed(str(words["manifest"]), buffers)
    except (KeyError, ValueError) as error:
        raise CodecError(f"a message cannot be read: {error}") from error
