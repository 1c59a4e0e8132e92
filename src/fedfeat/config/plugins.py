"""Methods from outside: a user's own file, or an installed package that announces itself.

A file is named in ``plugins`` of a configuration or with ``--plugin``. It is read and run before the configuration is
checked, so its names and settings tables are known like the built-in ones. A resolved configuration names the file
by its absolute path and its checksum, ``/home/me/my_method.py@sha256:4f1c...``. A run folder holds a copy and names
that one, ``plugins/my_method.py@sha256:4f1c...``: a run can only be continued with the very file it began with. A
package needs an entry point of the group ``fedfeat.methods`` whose module registers parts when it is imported.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import re
import sys
import traceback
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedfeat.algorithm.method import Method, Penalty, Reference, ServerStep, Statistic, TaskEndStep
from fedfeat.algorithm.registry import NoSettings, Part
from fedfeat.config import old_names
from fedfeat.config.deciding import PIN
from fedfeat.core.errors import FedfeatError, PluginError
from fedfeat.methods import PARTS

ENTRY_POINTS = "fedfeat.methods"
Parts = dict[str, Part]

# What was loaded in this process: a file's parts by its content, so that the same file in two places is one plugin.
_contents: dict[str, Parts] = {}
_sources: dict[str, bytes] = {}  # the files themselves, by their content's checksum
_files: dict[Path, str] = {}  # checksum of what each file held when it was last read
_packages: dict[str, Parts] = {}  # parts of each entry point


@dataclass(frozen=True)
class PluginFile:
    """An entry of ``plugins``: where the file is, and the checksum it must have if the entry is pinned."""

    path: Path
    pin: str | None

    @classmethod
    def parse(cls, entry: str, folder: Path) -> PluginFile:
        """Read an entry; a relative path counts from ``folder``, where the configuration file is.

        A pinned file that is gone may lie in ``folder`` instead, so a run folder can move to another machine.
        """
        name, _, pin = entry.partition(PIN)
        path = (folder / Path(name).expanduser()).resolve()
        beside = (folder / path.name).resolve()
        return cls(beside if pin and not path.is_file() and beside.is_file() else path, pin or None)

    def read(self) -> tuple[bytes, str]:
        """Return the file's content and checksum; a file that is not the pinned one is refused."""
        try:
            source = self.path.read_bytes()
        except OSError as error:
            hint = "put it back, or put a copy beside this configuration" if self.pin else "check the path"
            raise PluginError(f"plugins: {self.path} cannot be read ({error.strerror}); {hint}") from None
        digest = hashlib.sha256(source).hexdigest()
        if self.pin not in (None, digest):
            raise PluginError(
                f"plugins: {self.path} changed since the run began; restore it, or start a new run in another folder"
            )
        return source, digest


def loaded_file(entry: str) -> tuple[str, str, bytes]:
    """Return name, checksum and content of a pinned file that was loaded in this process."""
    path, _, digest = entry.partition(PIN)
    return Path(path).name, digest, _sources[digest]


def refuse_missing(named: Any, own: Sequence[str]) -> None:
    """Refuse to run without a plugin that somebody else runs with: it is looked for among one's own, never loaded.

    :param named: what the other side says it runs with, pinned; anything may come.
    """
    known = {PluginFile.parse(entry, Path()).read()[1] for entry in own}
    for entry in named if isinstance(named, list) else [named]:
        if str(entry).rpartition(PIN)[2] not in known:
            name = Path(str(entry).partition(PIN)[0]).name
            raise PluginError(
                f"plugins: the server runs with {name!r:.80}, and no plugin of this client has its checksum; read that "
                "file, and if you trust it start the client with --plugin FILE"
            )


def load_plugins(entries: Sequence[str], folder: Path, reserved: Collection[str]) -> tuple[str, ...]:
    """Load files and return their pinned entries, with absolute paths; those that came so as they were.

    :param folder: where relative paths count from.
    :param reserved: names of tables that a plugin may not use.
    """
    pinned = []
    for entry in entries:
        file = PluginFile.parse(entry, folder)
        digest = _load_file(file, reserved)
        as_it_was = file.pin and Path(entry).is_absolute()
        pinned.append(entry if as_it_was else f"{file.path}{PIN}{digest}")
    return tuple(dict.fromkeys(pinned))


def forget() -> None:
    """Let go of all files: whoever names one next runs it anew, as another process would."""
    for parts in _contents.values():
        for name in parts:
            PARTS.pop(name, None)
    _contents.clear()


def load_installed(reserved: Collection[str]) -> None:
    """Load the entry points of installed packages, once in a process."""
    for point in _entry_points():
        if point.value in _packages:
            PARTS.update(_packages[point.value])
            continue
        owner = f"plugin {point.name!r} of the package {point.dist.name if point.dist else point.module!r}"
        _packages[point.value] = _registered_by(point.load, owner, reserved, None)


@functools.cache
def _entry_points() -> list[importlib.metadata.EntryPoint]:
    return sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.value)


def _load_file(file: PluginFile, reserved: Collection[str]) -> str:
    source, digest = file.read()
    earlier = _files.get(file.path, digest)
    if earlier != digest:  # somebody edited the file
        for name in _contents.pop(earlier, {}):
            PARTS.pop(name, None)
    if digest not in _contents:
        parts = _registered_by(lambda: _execute(file.path, source), f"plugin {file.path}", reserved, file.path)
        if not parts:
            raise PluginError(f"plugin {file.path} registers nothing; put @base or @addon in front of a function")
        _contents[digest] = parts
    PARTS.update(_contents[digest])
    _sources[digest], _files[file.path] = source, digest
    return digest


def _execute(path: Path, source: bytes) -> None:
    # Compiled from the bytes that were checksummed; in sys.modules, because dataclasses and pydantic look there.
    module = types.ModuleType(f"fedfeat_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), module.__dict__)


def _registered_by(run: Callable[[], Any], owner: str, reserved: Collection[str], path: Path | None) -> Parts:
    """Run something that registers parts and return these; on any mistake the registry stays as it was."""
    before = dict(PARTS)
    try:
        try:
            run()
        except FedfeatError:
            raise
        except Exception as error:
            raise _mistake(error, owner, path) from error
        new = {name: part for name, part in PARTS.items() if before.get(name) is not part}
        for part in new.values():
            _refuse_taken_names(part, before, owner, reserved)
    except FedfeatError:
        PARTS.clear()
        PARTS.update(before)
        raise
    guarded = {name: replace(part, build=_guarded(part, owner, path)) for name, part in new.items()}
    PARTS.update(guarded)
    return guarded


def _refuse_taken_names(part: Part, before: Parts, owner: str, reserved: Collection[str]) -> None:
    if not re.fullmatch(r"[A-Za-z][\w-]*", part.name):
        raise PluginError(f"{owner} registers {part.name!r}; a name is a letter, then letters, digits, '_' or '-'")
    if part.name in before:
        raise PluginError(f"{owner} registers {part.name!r}, which exists already; choose another name")
    sharing = [p for p in before.values() if p.table == part.table and p.settings not in (NoSettings, part.settings)]
    if part.table in reserved or sharing:
        raise PluginError(f"{owner}: the table {part.table!r} of {part.name!r} exists already; choose another name")


def _guarded(part: Part, owner: str, path: Path | None) -> Callable[..., Method]:
    """Make mistakes in a part's function one sentence, as mistakes in its file are."""

    @functools.wraps(part.build)
    def build(*arguments: Any) -> Method:
        try:
            method = part.build(*arguments)
        except FedfeatError:
            raise
        except Exception as error:
            raise _mistake(error, owner, path) from error
        if not isinstance(method, Method):
            raise PluginError(f"{owner}: {part.name!r} returned {type(method).__name__}; it should return a Method")
        _refuse_incomplete_parts(method, owner, path)
        return method

    return build


def _refuse_incomplete_parts(method: Method, owner: str, path: Path | None) -> None:
    """Say before anything runs that a part lacks something that the federation would call."""
    kinds: dict[type, tuple[object, ...]] = {
        Reference: method.references,
        Penalty: method.penalties,
        Statistic: method.statistics,
        ServerStep: method.server_steps,
        TaskEndStep: method.task_end_steps(),
    }
    for kind, parts in kinds.items():
        members = [name for name in {**kind.__annotations__, **vars(kind)} if not name.startswith("_")]
        for part in parts:
            missing = [name for name in members if not hasattr(part, name)]
            if missing:
                raise PluginError(
                    f"{owner}: {type(part).__name__} has no {' and no '.join(missing)}; inherit from "
                    f"fedfeat.api.{kind.__name__}{_hint(path)}"
                )


def _hint(path: Path | None) -> str:
    return old_names.hint(path.read_text(errors="replace")) if path is not None and path.is_file() else ""


def _mistake(error: Exception, owner: str, path: Path | None) -> PluginError:
    """Say where in the user's file something went wrong: the innermost line of that file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        line, message = error.lineno, error.msg
    else:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [f for f in frames if f.filename == str(path)] or frames
        line, message = inside[-1].lineno, " ".join(str(error).split())
        if path is None:
            owner = f"{owner} ({inside[-1].filename})"
        if isinstance(error, ImportError | AttributeError | TypeError):
            message += _hint(path or Path(inside[-1].filename))
    return PluginError(f"{owner}, line {line}: {type(error).__name__}: {message}")
