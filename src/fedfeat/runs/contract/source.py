"""Where in the author's files something happens: the line behind an error, a call, a name."""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from fedfeat.algorithm.registry import NoSettings
from fedfeat.core.settings import Settings
from fedfeat.methods import parts_of

OURS = (Settings, NoSettings)


@dataclass(frozen=True)
class Source:
    """The author's files; whatever is asked for and not found in them is None."""

    files: tuple[Path, ...]

    @classmethod
    def of_method(cls, spec: str) -> Source:
        """Return the files in which the parts of a method are written."""
        parts = parts_of(spec)
        settings = (kind for part in parts for kind in part.settings.__mro__ if issubclass(kind, Settings))
        written = (*(inspect.unwrap(part.build) for part in parts), *(k for k in settings if k not in OURS))
        return cls(tuple(dict.fromkeys(Path(inspect.getfile(thing)) for thing in written)))

    def __contains__(self, filename: str) -> bool:
        return any(filename == str(path) for path in self.files)

    def behind_error(self, error: BaseException) -> str | None:
        """Return the innermost line of the files that an error came through."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in self]
        return place(frames[-1].filename, frames[-1].lineno) if frames else None

    def behind_call(self) -> str | None:
        """Return the innermost line of the files that is at work now."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename not in self:
            frame = frame.f_back  # type: ignore[assignment]
        return None if frame is None else place(frame.f_code.co_filename, frame.f_lineno)

    def of_function(self, function: Callable[..., Any]) -> str | None:
        """Return where a function begins."""
        code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)
        return place(code.co_filename, code.co_firstlineno) if code is not None and code.co_filename in self else None

    def of_text(self, text: str) -> str | None:
        """Return where a string is written last: the keys of a reply stand below their declarations."""
        return self._last(lambda node: isinstance(node, ast.Constant) and node.value == text)

    def of_assignment(self, name: str) -> str | None:
        """Return where a variable or an attribute of this name is written last, also by an entry of it."""
        return self._last(lambda node: any(_base(target) == name for target in _targets(node)))

    def of_setting(self, name: str) -> str | None:
        """Return where a key of the settings is declared."""
        return self._last(lambda node: isinstance(node, ast.AnnAssign) and _base(node.target) == name)

    def reads(self, name: str) -> bool:
        """Whether some line reads an attribute of this name, of a variable or of ``self.settings``."""
        read = (n for _, n in self._nodes() if isinstance(n, ast.Attribute) and n.attr == name)
        return any(isinstance(n.value, ast.Name) or _base(n.value) == "settings" for n in read)

    def _last(self, wanted: Callable[[ast.AST], bool]) -> str | None:
        found = [place(str(path), node.lineno) for path, node in self._nodes() if wanted(node)]
        return found[-1] if found else None

    def _nodes(self) -> Iterator[tuple[Path, Any]]:
        for path in self.files:
            nodes = [node for node in ast.walk(ast.parse(path.read_bytes())) if hasattr(node, "lineno")]
            yield from ((path, node) for node in sorted(nodes, key=lambda node: node.lineno))


def place(filename: str, line: int | None) -> str:
    """Return a place as editors know it."""
    path, here = Path(filename), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path.name}:{line}"


def _targets(node: ast.AST) -> list[ast.expr]:
    """Return what a statement assigns to, several at once taken apart."""
    if isinstance(node, ast.Assign):
        return [e for t in node.targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _base(target: ast.AST) -> str | None:
    while isinstance(target, ast.Subscript):
        target = target.value
    return target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else None
