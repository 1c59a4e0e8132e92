"""Read the pickles of the CIFAR "python" archives without running anything they contain.

Not even NumPy's own reconstruction is called: stand-ins collect its arguments, and the array is then built
from plain bytes. Any other name in the pickle is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from fedfeat.core.errors import DataError
from fedfeat.data.checks import Images


class _Dtype:
    def __init__(self, code: bytes | str, *_: Any) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        """Byte order and alignment: without meaning for single bytes."""


class _Array:
    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "|u1") or not isinstance(raw, bytes):
            raise ValueError("only arrays of uint8 are admitted")
        self.pixels: Images = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: bytes | str = "latin1") -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise ValueError(f"the text encoding {encoding!r} is not admitted")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    # Protocols 0 to 2 written by Python 3 spell bytes as _codecs.encode(text, "latin1").
    ("_codecs", "encode"): _encode,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise DataError(f"it refers to {module}.{name}, which no CIFAR file needs") from None


def _plain(key: Any) -> Any:
    return key.decode("latin1") if isinstance(key, bytes) else key


def read_batch(where: str, data: bytes, label_key: str) -> tuple[Images, list[int]]:
    """Return the rows of pixels and the labels of one CIFAR pickle."""
    try:
        content = _RestrictedUnpickler(io.BytesIO(data), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{where}: this pickle was refused because {error}; download it again") from error
    except Exception as error:  # A damaged pickle can raise nearly anything.
        raise DataError(f"{where}: this pickle cannot be read ({error}); download it again") from error
    batch = {_plain(key): value for key, value in content.items()} if isinstance(content, dict) else {}
    rows, labels = getattr(batch.get("data"), "pixels", None), batch.get(label_key)
    if rows is None or not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(
            f"{where}: expected a dict with 'data' (uint8 array) and {label_key!r} (list of int), "
            f"got {sorted(map(str, batch)) or type(content).__name__}; download it again"
        )
    return rows, labels
