"""A client's memory: answers are given once, states can be turned back, and damage is noticed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from fedfeat.core.payload import Payload, State
from fedfeat.engines.flower.codec import pack, unpack
from fedfeat.engines.flower.store import Store


def commit(store: Store, task: int, round: int, op: str, request: str = "r", **state: object) -> None:
    reply: Payload = {"told": f"{task}.{round}.{op}.{request}", "weights": torch.full((4,), float(round))}
    after: State = {**store.state, **state}  # type: ignore[dict-item]
    store.commit((task, round), op, request, pack(reply), after, {"weights": 16})


def told(store: Store, task: int, round: int, op: str, request: str = "r") -> str | None:
    reply = store.answered((task, round), op, request)
    return None if reply is None else str(unpack(reply)["told"])


@pytest.mark.parametrize("reopened", [False, True])
def test_a_request_is_answered_from_memory_in_any_order(tmp_path: Path, reopened: bool) -> None:
    store = Store(tmp_path)
    commit(store, 0, 0, "train")
    for op in ("a", "b", "c"):
        commit(store, 0, 1, op, kept=op)
    store = Store(tmp_path) if reopened else store
    assert store.generation == 3
    for _ in range(2):
        assert [told(store, 0, 1, op) for op in ("a", "b", "c")] == ["0.1.a.r", "0.1.b.r", "0.1.c.r"]
        assert told(store, 0, 0, "train") == "0.0.train.r"
    assert store.state == {"kept": "c"}


@pytest.mark.parametrize("reopened", [False, True])
def test_another_request_at_the_same_place_starts_from_the_state_before_it(tmp_path: Path, reopened: bool) -> None:
    store = Store(tmp_path)
    for op in ("a", "b", "c"):
        commit(store, 0, 1, op, kept=torch.tensor([ord(op)]))
    store = Store(tmp_path) if reopened else store
    assert told(store, 0, 1, "b", "other") is None
    kept = store.state["kept"]
    assert isinstance(kept, torch.Tensor)
    assert kept.tolist() == [ord("a")]
    assert store.generation == 1
    assert told(store, 0, 1, "c") is None, "what came after it is void as well"
    assert told(store, 0, 1, "a") == "0.1.a.r"


def test_two_rounds_are_kept_and_older_objects_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for round in range(6):
        commit(store, 0, round, "train", model=torch.full((8,), float(round)))
    assert [told(Store(tmp_path), 0, r, "train") for r in (4, 5)] == ["0.4.train.r", "0.5.train.r"]
    assert len(list((tmp_path / "objects").iterdir())) == 5, "two replies, two states after them, one before"
    # A request from further back begins with the oldest state there is.
    assert told(store, 0, 2, "train") is None
    model = store.state["model"]
    assert isinstance(model, torch.Tensor)
    assert model[0] == 3


def test_an_unchanged_tensor_is_written_once_and_is_no_change(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commit(store, 0, 0, "train", model=torch.arange(1000.0), note="x")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "objects").iterdir()}
    commit(store, 0, 1, "train")
    assert store.generation == 1
    after = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "objects").iterdir()}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1, "only the reply is new"


def test_a_lost_reply_is_worked_out_again_from_the_state_before(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commit(store, 0, 0, "train", kept="before")
    commit(store, 0, 1, "train", kept="after")
    reply = json.loads((tmp_path / "journal.json").read_text())["entries"][1]["reply"]
    (tmp_path / "objects" / reply).write_bytes(b"cut off by a power cut")
    store = Store(tmp_path)
    assert told(store, 0, 1, "train") is None
    assert store.state == {"kept": "before"}


@pytest.mark.parametrize("damage", ["gone", "changed", "journal"])
def test_a_damaged_state_is_no_state(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    commit(store, 0, 0, "train", kept=torch.arange(3), also="plain")
    name = store.now.tensors["kept"]
    if damage == "gone":
        for place in ("objects", "copies"):
            (tmp_path / place / name).unlink()
    elif damage == "changed":
        spoil(tmp_path, name)
    else:
        for journal in ("journal.json", "journal.checked.json"):
            (tmp_path / journal).write_text("{")
    store = Store(tmp_path)
    assert store.state == {}
    assert store.generation == 0, "the server remembers more, and so learns of the loss"


def spoil(folder: Path, name: str) -> None:
    """Damage an object and its copy."""
    for place in ("objects", "copies"):
        stored = folder / place / name
        stored.write_bytes(stored.read_bytes()[:-1] + b"?")


def test_a_damaged_object_is_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    commit(store, 0, 0, "train", pool=torch.arange(3), other=torch.arange(5))
    for name in store.now.tensors.values():
        spoil(tmp_path, name)
    store = Store(tmp_path)
    assert store.state == {}
    commit(store, 0, 1, "train", pool=torch.arange(3), other=torch.arange(5))
    assert set(Store(tmp_path).state) == {"pool", "other"}


def test_an_earlier_exchange_tells_of_the_state_of_its_moment(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for count, op in enumerate(("a", "b")):
        commit(store, 0, 0, op, kept=torch.arange(count))
    for opened in (store, Store(tmp_path)):
        assert opened.after((0, 0), "a").generation == 1
        tensors = [opened.tensor(opened.after((0, 0), op), "kept") for op in ("a", "b")]
        assert [None if t is None else len(t) for t in tensors] == [0, 1]
        assert opened.tensor(opened.now, "nothing") is None


def test_going_back_is_no_loss_unless_the_earlier_state_is_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for op in ("a", "b", "c"):
        commit(store, 0, 0, op, kept=torch.tensor([ord(op)]))
    assert told(store, 0, 0, "c", "other") is None
    assert (store.generation, store.reached) == (2, 3)
    spoil(tmp_path, store.after((0, 0), "a").tensors["kept"])
    assert told(store, 0, 0, "b", "other") is None
    assert (store.generation, store.reached) == (0, 0)


def test_what_left_is_added_up(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for round in range(3):
        commit(store, 0, round, "train")
    assert dict(Store(tmp_path).sent) == {"train/weights": 48}


def test_a_store_on_disk_is_read_byte_by_byte(tmp_path: Path) -> None:
    """What clients have on their disks since the first version: its spelling does not change."""

    def write_object(head: bytes, data: bytes) -> str:
        content = b"fedfeat1" + len(head).to_bytes(8, "little") + head + data
        name = hashlib.sha256(content).hexdigest()
        (tmp_path / "objects").mkdir(exist_ok=True)
        (tmp_path / "objects" / name).write_bytes(content)
        return name

    kept = write_object(rb'["[[\"value\", \"int64\", [2]]]", {"int64": 16}]', bytes([3, *[0] * 7, 5, *[0] * 7]))
    reply = write_object(rb'["[[\"told\", null, \"before\"]]", {}]', b"")
    after = {"generation": 4, "plain": {"note": "x"}, "tensors": {"kept": kept}}
    entry = {"place": [1, 0], "op": "train", "request": "r", "reply": reply, "after": after}
    base = {"generation": 3, "plain": {}, "tensors": {}}
    journal = {"base": base, "entries": [entry], "sent": {"train/weights": 48}}
    (tmp_path / "journal.json").write_text(json.dumps(journal, indent=2) + "\n")
    store = Store(tmp_path)
    assert (store.task, store.generation, dict(store.sent)) == (1, 4, {"train/weights": 48})
    assert store.state["note"] == "x"
    assert torch.equal(store.state["kept"], torch.tensor([3, 5]))  # type: ignore[arg-type]
    assert told(store, 1, 0, "train") == "before"
    store._write()
    assert json.loads((tmp_path / "journal.json").read_text()) == journal
