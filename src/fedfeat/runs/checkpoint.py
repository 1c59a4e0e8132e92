"""Checkpoints: the server's progress and every client's state, checksummed, without pickle.

    checkpoint/<number>/manifest.json       where we are, numbers, traffic, checksums of the files below and of itself
    checkpoint/<number>/server.safetensors  weights and confusion tables
    checkpoint/clients/<number>.safetensors states of the clients that changed since the checkpoint before
    checkpoint/copies/<number>.safetensors  the same once more: several checkpoints need such a file

Only clients that changed are written, so a checkpoint costs what a round touched, not what is registered. Draws
have addresses, so no generator state is saved, and where checkpoints fall does not change a result.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from fedfeat.algorithm.tables import Tables
from fedfeat.core.errors import CheckpointError
from fedfeat.core.files import json_digest, json_ready, sha256, write_atomically
from fedfeat.core.payload import State
from fedfeat.federation.exchange import Traffic
from fedfeat.federation.progress import Progress
from fedfeat.federation.rollback import Place

KEEP = 2  # the newest checkpoints; the older of the two is the fall-back for a damaged one
MOST_SHARDS = 16
COPIES = "copies"
SERVER = "server.safetensors"
FORMAT = 1


class CheckpointFolder:
    """Writes and reads the checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner: dict[int, str] = {}  # which file holds a client's newest state
        self.users: Counter[str] = Counter()  # clients that need each file in use
        self.digests: dict[str, str] = {}  # of these files
        self.number = max((int(p.name) for p in self._all()), default=0)

    def save(
        self,
        progress: Progress,
        states: Mapping[int, State],
        touched: set[int],
        extra: Mapping[str, Any],
        *,
        keep_ends: bool = False,
    ) -> None:
        """Write one checkpoint; a kill at any moment leaves the one before it intact.

        :param keep_ends: the checkpoints at the ends of tasks stay too, besides the newest.
        """
        self.number += 1
        self._write_clients(states, touched)
        folder = self.folder / f"{self.number:08d}"
        write_atomically(folder / SERVER, to_safetensors(_server_tensors(progress)))
        server = f"{folder.name}/{SERVER}"
        described = {
            "format": FORMAT,
            "position": {"task": progress.task, "round": progress.round, "finished": progress.finished},
            "numbers": progress.numbers,
            "delivered": {name: sorted(clients) for name, clients in progress.delivered.items()},
            "variants": list(progress.tables[-1].variants) if progress.tables else [],
            "traffic": dict(progress.traffic.counts),
            "best_loss": progress.best_loss if math.isfinite(progress.best_loss) else None,
            "best_numbers": progress.best_numbers,
            "images_trained": progress.images_trained,
            "seconds": progress.seconds,
            "shortfalls": progress.shortfalls,
            "lost_states": progress.lost_states,
            "files": {
                server: sha256(self.folder / server),
                **{f"clients/{name}": digest for name, digest in sorted(self.digests.items())},
            },
            **extra,
        }
        _write_manifest(folder, described)
        self._clean(keep_ends)

    def kept(self) -> dict[Place, Path]:
        """Return the whole checkpoints by where they stand, none beyond the newest."""
        found: dict[Place, Path] = {}
        for folder in sorted(self._all(), reverse=True):
            with contextlib.suppress(OSError, ValueError, KeyError):
                place = Place.of(self._manifest(folder)["position"])
                if place <= max(found, default=place) and place not in found:
                    found[place] = folder
        return found

    def events_size(self, folder: Path) -> int:
        """Return how long the events file was at a checkpoint."""
        return int(self._manifest(folder, within=f"{folder.name}/")["events_size"])

    def go_back(self, folder: Path, extra: Mapping[str, Any]) -> None:
        """Make a checkpoint the newest one: it is written again, and those that came after it are removed."""
        manifest, later = self._manifest(folder), [p for p in self._all() if p.name > folder.name]
        self.number += 1
        again = self.folder / f"{self.number:08d}"
        write_atomically(again / SERVER, (folder / SERVER).read_bytes())
        own = f"{folder.name}/{SERVER}"
        files = {f"{again.name}/{SERVER}" if k == own else k: v for k, v in manifest["files"].items()}
        _write_manifest(again, {**manifest, **extra, "files": files})
        for gone in later:
            shutil.rmtree(gone, ignore_errors=True)

    def load(self, *, alone: bool = False) -> tuple[Progress, dict[int, State], dict[str, Any]] | None:
        """Return the newest whole checkpoint, or None when none was ever completed.

        :param alone: nobody else writes into the folder, so newer ones that are not whole can be removed.
        """
        candidates = sorted(self._all(), reverse=True)
        for position, folder in enumerate(candidates):
            try:
                loaded = self._read(folder)
                for damaged in candidates[:position] if alone else ():
                    shutil.rmtree(damaged, ignore_errors=True)
                return loaded
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                if (folder / "manifest.json").exists():
                    warnings.warn(f"{folder}: damaged ({error}); looking for the checkpoint before it", stacklevel=2)
        if any((folder / "manifest.json").exists() for folder in candidates):
            raise CheckpointError(f"{self.folder}: every checkpoint is damaged; start the run anew in another folder")
        return None

    def peek(self) -> tuple[Progress, dict[str, Any]] | None:
        """Return the server's side of the newest whole checkpoint; nothing is changed, so a run may be going on."""
        for folder in sorted(self._all(), reverse=True):
            with contextlib.suppress(OSError, ValueError, KeyError, SafetensorError):
                manifest = self._manifest(folder, within=f"{folder.name}/")
                return _read_progress(folder / SERVER, manifest), manifest
        return None

    def _manifest(self, folder: Path, within: str = "") -> dict[str, Any]:
        """Return a manifest whose checksum, and those of the files that begin with ``within``, are right."""
        manifest = json.loads((folder / "manifest.json").read_text())
        if not isinstance(manifest, dict):
            raise ValueError("manifest.json does not hold a table")
        checksum = manifest.pop("checksum")
        if checksum != json_digest(manifest):
            raise ValueError("the checksum of manifest.json does not match")
        for name, expected in manifest["files"].items():
            if name.startswith(within):
                self._whole(name, expected)
        return manifest

    def _whole(self, name: str, expected: str) -> Path:
        """Return the file of a manifest, or its copy, whichever has the checksum."""
        for path in (self.folder / name, self.folder / COPIES / Path(name).name):
            if path.exists() and sha256(path) == expected:
                if path.parent.name == COPIES:
                    warnings.warn(f"{self.folder / name}: damaged; using its copy", stacklevel=2)
                return path
        raise ValueError(f"the checksum of {name} does not match")

    def _read(self, folder: Path) -> tuple[Progress, dict[int, State], dict[str, Any]]:
        manifest = self._manifest(folder)
        states: dict[int, State] = {}
        for name in manifest["files"]:
            if name.startswith("clients/"):
                shard = _read_states(self._whole(name, manifest["files"][name]))
                states.update(shard)
                self._own(shard, Path(name).name, manifest["files"][name])
        return _read_progress(folder / SERVER, manifest), states, manifest

    def _write_clients(self, states: Mapping[int, State], touched: set[int]) -> None:
        if len(self.digests) >= MOST_SHARDS:
            touched = set(states)
        if touched:
            name = f"{self.number:08d}.safetensors"
            content = _states_bytes({k: states[k] for k in sorted(touched)})
            for kept in ("clients", COPIES):
                write_atomically(self.folder / kept / name, content)
            self._own(touched, name, hashlib.sha256(content).hexdigest())

    def _own(self, clients: Iterable[int], name: str, digest: str) -> None:
        """Note that a file now holds the newest state of some clients; others may be let go."""
        for client in clients:
            if (old := self.owner.get(client)) is not None:
                self.users[old] -= 1
            self.users[name] += 1
            self.owner[client] = name
        self.users += Counter()  # without files that nobody needs
        self.digests[name] = digest
        self.digests = {used: self.digests[used] for used in self.users}

    def _clean(self, keep_ends: bool) -> None:
        """Drop what neither the newest two checkpoints need nor, if they are kept, those at the ends of tasks."""
        kept, needed = list[Path](), set[str]()
        for number, folder in enumerate(sorted(self._all(), reverse=True)):
            ended = False
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                manifest = json.loads((folder / "manifest.json").read_text())
                ended = keep_ends and manifest["position"]["finished"]
                if number < KEEP or ended:
                    needed |= {Path(name).name for name in manifest["files"]}
            if number < KEEP or ended:
                kept.append(folder)
        for folder in set(self._all()) - set(kept):
            shutil.rmtree(folder, ignore_errors=True)
        for kept_in in ("clients", COPIES):
            for shard in (self.folder / kept_in).glob("*.safetensors"):
                if shard.name not in needed:
                    shard.unlink(missing_ok=True)

    def _all(self) -> list[Path]:
        return [p for p in self.folder.glob("*") if p.is_dir() and p.name.isdigit()]


def _write_manifest(folder: Path, described: Mapping[str, Any]) -> None:
    """Write the manifest, which comes last: a folder without a valid one is not a checkpoint."""
    manifest = json_ready(described)
    write_atomically(folder / "manifest.json", json.dumps({**manifest, "checksum": json_digest(manifest)}).encode())


def _server_tensors(progress: Progress) -> dict[str, Tensor]:
    tensors = {"weights": progress.weights.cpu()}
    if progress.best_weights is not None:
        tensors["best_weights"] = progress.best_weights.cpu().clone()
    tensors |= {f"tensors/{name}": value.cpu().contiguous() for name, value in progress.tensors.items()}
    tensors |= {f"shared/{name}": value.cpu().contiguous() for name, value in progress.shared.items()}
    tensors |= {f"deferred/{name}": torch.from_numpy(quotas) for name, quotas in progress.deferred.items()}
    for task, tables in enumerate(progress.tables):
        tensors[f"tables/{task:04d}"] = torch.from_numpy(np.stack([*tables[:2], *tables.variants.values()]))
    return tensors


def _read_progress(path: Path, manifest: Mapping[str, Any]) -> Progress:
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    tables = []
    for name in sorted(n for n in tensors if n.startswith("tables/")):
        plain, corrected, *others = tensors[name].numpy()
        tables.append(Tables(plain, corrected, dict(zip(manifest["variants"], others, strict=True))))
    return Progress(
        task=manifest["position"]["task"],
        round=manifest["position"]["round"],
        finished=manifest["position"]["finished"],
        weights=tensors["weights"],
        numbers=_numbers(manifest["numbers"]),
        tensors={n.removeprefix("tensors/"): t for n, t in tensors.items() if n.startswith("tensors/")},
        shared={n.removeprefix("shared/"): t for n, t in tensors.items() if n.startswith("shared/")},
        deferred={
            n.removeprefix("deferred/"): tensors[n].numpy() for n in sorted(tensors) if n.startswith("deferred/")
        },
        delivered={name: set(clients) for name, clients in manifest["delivered"].items()},
        tables=tables,
        traffic=Traffic(manifest["traffic"]),
        best_loss=float("inf") if manifest["best_loss"] is None else manifest["best_loss"],
        best_weights=tensors.get("best_weights"),
        best_numbers=_numbers(manifest.get("best_numbers", manifest["numbers"])),
        images_trained=manifest["images_trained"],
        seconds=manifest["seconds"],
        shortfalls=manifest.get("shortfalls", []),
        lost_states=manifest.get("lost_states", []),
    )


def _numbers(table: Mapping[str, float | None]) -> dict[str, float]:
    """Return numbers as they were measured: JSON has null for one that was not finite."""
    return {name: float("nan") if value is None else value for name, value in table.items()}


def _states_bytes(states: Mapping[int, State]) -> bytes:
    tensors: dict[str, Tensor] = {}
    others: dict[str, dict[str, Any]] = {}
    for client, state in states.items():
        others[str(client)] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
        tensors |= {f"{client}/{k}": v.cpu().contiguous() for k, v in state.items() if isinstance(v, Tensor)}
    return to_safetensors(tensors, metadata={"others": json.dumps(others)})


def _read_states(path: Path) -> dict[int, State]:
    with safe_open(str(path), framework="pt") as file:
        states: dict[int, State] = {int(k): dict(v) for k, v in json.loads(file.metadata()["others"]).items()}
        for name in file.keys():  # noqa: SIM118
            client, _, key = name.partition("/")
            states[int(client)][key] = file.get_tensor(name)
    return states
