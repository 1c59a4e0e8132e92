"""Clients trained vectorised beside clients trained one by one: the same batches, the same replies."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedfeat.algorithm.step import LossTerm
from fedfeat.core.payload import Payload
from fedfeat.data.dataset import Augmentation
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.engines.stack import CapturedStack, ProductConv, Stack
from fedfeat.engines.vectorised import Cohort, VectorisedClients
from fedfeat.federation.progress import Progress
from fedfeat.methods import all_methods
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from simulated_gpu import simulate
from toy import scenario_from, toy_config, toy_dataset

TOLERANCE = 1e-4
NEAR = TOLERANCE if torch.cuda.is_available() else 1e-5
DATA = toy_dataset(Augmentation(1, True, 0.2))
# Batches of 7: full ones, remainders that some clients share, one of a single sample, and a client without any.
SIZES = (15, 7, 9, 0, 16, 8)


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Steps one after another, and captured ones: on a GPU, or on a simulated one where there is none."""
    name: str = request.param
    if name == "cuda" and not torch.cuda.is_available():
        simulate(monkeypatch)
        monkeypatch.setattr("fedfeat.engines.vectorised.Stack", CapturedStack)
    return name


class VectorisedEngine(InProcessEngine):
    """Trains all clients vectorised that can be."""

    used = 0

    def ask(self, op: str, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Any]]:
        vectorised = self.__dict__.setdefault("side_by_side", VectorisedClients(self))
        if op != "train" or not vectorised.takes(requests):
            yield from super().ask(op, requests)
            return
        self.used += 1
        yield from self.answer(vectorised, requests)

    def answer(self, vectorised: VectorisedClients, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        return vectorised.train(requests)


class WatchedEngine(VectorisedEngine):
    """Trains clients both ways in every round, compares the replies, and goes on from those of one by one.

    So rounding does not add up over rounds, and no exemplar is chosen otherwise because of it.
    """

    def answer(self, vectorised: VectorisedClients, requests: Mapping[int, Payload]) -> Iterator[tuple[int, Payload]]:
        ours, theirs = kept(vectorised.train(requests)), one_by_one(self, requests)
        assert_same(ours, theirs, TOLERANCE)
        yield from theirs.items()


def make_engine(method: str, *, device: str = "cpu", vectorised: int = 50, **changes: Any) -> InProcessEngine:
    """An engine in its first task with clients of given sizes."""
    changes["train"] = {"batch": 7, **changes.get("train", {})}
    config = toy_config(method, engine={"device": device, "vectorised": vectorised}, **changes)
    start, first = 0, []
    for size in SIZES:
        first.append(list(range(start, start + size)))
        start += size
    second = [[72 + i for i in range(k, k + 9)] for k in range(0, 54, 9)]
    scenario = scenario_from(DATA.train_labels, [first, second])
    engine = InProcessEngine(config, DATA, scenario, config.build_method())
    engine.begin_task(0)
    return engine


def requests_of(engine: InProcessEngine) -> dict[int, Payload]:
    return {k: {"weights": engine.model.vector.clone()} for k in range(len(SIZES))}


def kept(replies: Iterator[tuple[int, Any]]) -> dict[int, Payload]:
    return {k: {n: v.clone() if isinstance(v, Tensor) else v for n, v in r.items()} for k, r in replies}


def one_by_one(engine: InProcessEngine, requests: Mapping[int, Payload]) -> dict[int, Payload]:
    return kept((k, engine.ops["train"](engine.client(k), dict(requests[k]))) for k in sorted(requests))


def assert_same(ours: Mapping[int, Payload], theirs: Mapping[int, Payload], tolerance: float = NEAR) -> None:
    assert list(ours) == list(theirs)
    for client, reply in theirs.items():
        assert list(ours[client]) == list(reply)
        for name, value in reply.items():
            mine = ours[client][name]
            assert type(mine) is type(value), name
            if isinstance(value, Tensor):
                assert isinstance(mine, Tensor)
                assert float((mine - value).norm() / value.norm()) < tolerance, (client, name)
            else:
                assert mine == pytest.approx(value, rel=10 * tolerance, abs=1e-6), (client, name)


def assert_same_in_a_draw(train: Callable[[int], tuple[Mapping[int, Payload], Mapping[int, Payload]]]) -> None:
    """Compare the replies of some seed, and of others where they differ, down to the last one.

    A ReLU that one rounding decides otherwise is in few draws, on few processors; a mistake is in all of them.
    """
    for seed in (7, 8):
        with suppress(AssertionError):
            return assert_same(*train(seed))
    return assert_same(*train(9))


def run(
    folder: Path, method: str, engine: type[VectorisedEngine], vectorised: int = 50, device: str = "cpu"
) -> tuple[Progress, VectorisedEngine]:
    changes = {"scenario": {"tasks": 2, "clients": 4}, "train": {"batch": 7, "rounds": 2, "lr": 0.01}}
    config = toy_config(method, engine={"device": device, "vectorised": vectorised}, **changes)
    experiment = Experiment(config, DATA, engine=engine)
    progress = Progress()
    experiment.run(RunFolder.create(folder, config, {}), progress, ())
    assert isinstance(experiment.engine, VectorisedEngine)
    return progress, experiment.engine


def qualifying() -> list[str]:
    return [m for m in all_methods() if toy_config(m).build_method().steps_alike]


def test_what_can_be_vectorised() -> None:
    found = set(qualifying())
    assert {"finetune", "replay", "fedcbdr+feat", "refed+feat", "fedcbdr+fedrcl", "fedcbdr+feat+calibrate"} <= found
    assert {"fedlwf", "fedcbdr+etf+balanced+distil"} <= found, "their references differ in tensors alone"
    assert not found & {"fedewc", "fedcbdr+moon", "fedcbdr+scaffold", "fedcbdr+fedprox", "target", "lander"}
    online = toy_config("fedcbdr+feat", feat={"egc": {"prior_source": "online"}}).build_method()
    assert not online.steps_alike


# On a CPU the contract asks it of every method.
# Captured steps are slow to simulate: a plain loss, a teacher, GSA, a clipped gradient, and held-out data.
CAPTURED = ("finetune", "fedlwf", "fedcbdr+feat", "fedcbdr+fedrcl", "fedcbdr+feat+calibrate")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("method", CAPTURED)
def test_every_round_of_a_run_agrees(tmp_path: Path, method: str, device: str) -> None:
    _, engine = run(tmp_path / "run", method, WatchedEngine, device=device)
    assert engine.used == 4


@pytest.mark.slow
@pytest.mark.parametrize(("method", "device"), [("finetune", "cuda"), ("replay", "cpu")], indirect=["device"])
def test_whole_runs_agree(tmp_path: Path, method: str, device: str) -> None:
    ours, engine = run(tmp_path / "a", method, VectorisedEngine, device=device)
    theirs, reference = run(tmp_path / "b", method, VectorisedEngine, vectorised=1, device=device)
    assert (engine.used, reference.used) == (4, 0)
    assert float((ours.weights - theirs.weights).norm() / theirs.weights.norm()) < TOLERANCE
    assert ours.traffic.counts == theirs.traffic.counts


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("finetune", {"model": {"norm": "group"}}),
    ("replay+etf+balanced+distil", {"model": {"features": "signed"}}),
    ("finetune", {"train": {"weight_decay": 0.1, "momentum": 0.0, "local_epochs": 3}}),
    ("fedcbdr", {"fedcbdr": {"tts": "paper"}}),
    ("fedcbdr+fedrcl", {"fedrcl": {"variant": "full"}}),
    ("fedcbdr+fedrcl", {"fedrcl": {"grad_clip": 0.05}}),
    ("replay+feat", {"feat": {"gsa": {"kl": "sym", "include_self": False, "from_task": 1}}}),
    ("replay+feat", {"feat": {"gsa": {"kl": "PF", "class_balanced": False, "from_task": 1}}}),
    ("replay+feat", {"feat": {"gsa": {"target": "random", "from_task": 1}}}),
    ("replay+feat", {"feat": {"logits": "cosine", "logit_scale": "learnable", "feature_head": "mlp"}}),
]


# What a loss asks for does not depend on how convolutions are computed, so each meets one of the two ways.
@pytest.mark.parametrize(
    ("method", "changes", "convolutions"),
    [(*variant, ("products", "grouped")[place % 2]) for place, variant in enumerate(VARIANTS)],
)
def test_one_round_agrees_reply_by_reply(method: str, changes: dict[str, Any], convolutions: Any) -> None:
    def train(seed: int) -> tuple[dict[int, Payload], dict[int, Payload]]:
        engine = make_engine(method, seed=seed, **changes)
        requests = requests_of(engine)
        return kept(VectorisedClients(engine, convolutions).train(requests)), one_by_one(engine, requests)

    assert_same_in_a_draw(train)
    assert train(7)[0][3] == {"samples": 0}


@pytest.mark.parametrize("method", ["fedcbdr", "replay+feat", "finetune"])
def test_terms_of_later_tasks_agree_too(method: str) -> None:
    def train(seed: int) -> tuple[dict[int, Payload], dict[int, Payload]]:
        engine = make_engine(method, seed=seed)
        if method != "finetune":
            engine.states = {k: {"exemplars": torch.arange(k, k + 3)} for k in range(5)}
        engine.begin_task(1)
        requests = requests_of(engine)
        return kept(VectorisedClients(engine).train(requests)), one_by_one(engine, requests)

    assert_same_in_a_draw(train)


@pytest.mark.slow
def test_resnet_agrees_too() -> None:
    larger = replace(
        DATA,
        train_images=DATA.train_images.repeat(2, axis=1).repeat(2, axis=2),
        test_images=DATA.test_images.repeat(2, axis=1).repeat(2, axis=2),
    )
    config = toy_config("finetune", model={"name": "resnet18"}, train={"batch": 2, "local_epochs": 1})
    scenario = scenario_from(DATA.train_labels, [[[0, 30], [5, 31, 40]], [[80], [81]]])
    for convolutions in ("grouped", "products"):
        engine = InProcessEngine(config, larger, scenario, config.build_method())
        engine.begin_task(0)
        requests: dict[int, Payload] = {k: {"weights": engine.model.vector.clone()} for k in range(2)}
        ours = kept(VectorisedClients(engine, convolutions).train(requests))  # type: ignore[arg-type]
        assert_same(ours, one_by_one(engine, requests), 1e-4)


def test_everybody_may_start_from_other_weights() -> None:
    engine = make_engine("finetune")
    requests = requests_of(engine)
    for k, request in requests.items():
        request["weights"] = engine.model.vector * (1 + k / 10)
    assert_same(kept(VectorisedClients(engine).train(requests)), one_by_one(engine, requests))


def test_parts_and_rounds_change_nothing() -> None:
    engine, few = make_engine("finetune"), make_engine("finetune", vectorised=2)
    by_two = VectorisedClients(few)
    vectorised = VectorisedClients(engine)
    for round in range(3):
        engine.round = few.round = round
        requests = requests_of(engine)
        ours = kept(vectorised.train(requests))
        assert_same(kept(by_two.train(requests)), ours, 1e-6)
        engine.model.load(torch.stack([r["weights"] for r in ours.values() if "weights" in r]).mean(0))


def test_a_row_that_belongs_to_nobody_changes_nothing() -> None:
    engine = make_engine("finetune")
    ends = []
    for fill in (0, 3):
        stack = Stack(engine, 4, 20)
        stack.vectors[:] = engine.model.vector
        stack.order[:4] = torch.arange(80).view(4, 20) % 48
        stack.lr.fill_(0.05)
        for rows in ([1, 3], [0, 1]):
            stack.take(5, torch.tensor(rows + [4] * fill), whole=False)
        ends.append(stack)
    assert torch.allclose(ends[0].vectors[:4], ends[1].vectors[:4], rtol=1e-5, atol=1e-6)
    assert torch.equal(ends[1].vectors[2], engine.model.vector)
    assert [s.cursor.tolist() for s in ends] == [[5, 10, 0, 5, 0]] * 2


def test_states_that_statistics_write_are_kept() -> None:
    engine = make_engine("fedcbdr+feat")

    class Remember:
        per_step = False

        def start(self, client: Any, request: Payload) -> dict[str, Tensor]:
            return {"received": client.model.vector.clone()}

        def update(self, *_: Any) -> None:
            raise AssertionError("not per step")

        def finish(self, client: Any, buffers: dict[str, Tensor]) -> Payload:
            client.state["moved"] = float((client.model.vector - buffers["received"]).norm())
            return {"moved": client.state["moved"]}

        def reduce(self, replies: Any) -> dict[str, float]:
            return {}

    engine.method = replace(engine.method, statistics=(Remember(),))
    requests = requests_of(engine)
    start = engine.model.vector.clone()
    replies = kept(VectorisedClients(engine).train(requests))
    assert engine.touched == {k for k, n in enumerate(SIZES) if n}
    for client in engine.touched:
        vector = replies[client]["weights"]
        assert isinstance(vector, Tensor)
        assert (
            engine.states[client]["moved"] == replies[client]["moved"] == pytest.approx(float((vector - start).norm()))
        )


def test_who_is_left_to_one_by_one() -> None:
    forced, auto, off = (make_engine("finetune", vectorised=n) for n in (50, 0, 1))
    requests = requests_of(forced)
    assert VectorisedClients(forced).takes(requests)
    assert not VectorisedClients(auto).takes(requests)  # too few to pay
    assert not VectorisedClients(off).takes(requests)
    assert not VectorisedClients(forced).takes({0: requests[0], 3: requests[3]})  # a single client with samples
    own = forced.ops["train"]
    forced.ops["train"] = lambda client, request: own(client, request)
    assert not VectorisedClients(forced).takes(requests)  # somebody's own training op has to be called
    assert not VectorisedClients(make_engine("fedewc")).takes(requests)


def test_a_term_that_asks_for_a_value_is_left_to_one_by_one() -> None:
    engine = make_engine("finetune")
    nosy = LossTerm("nosy", lambda step: step.logits.sum() * float(step.labels.sum().item() > 3))
    engine.method = replace(engine.method, terms=(nosy,))
    vectorised = VectorisedClients(engine)
    with pytest.warns(UserWarning, match="clients train one by one: a loss term cannot be stacked"):
        assert not vectorised.takes(requests_of(engine))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not vectorised.takes(requests_of(engine))  # said once per task


def test_when_memory_runs_out_fewer_train_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("finetune")
    requests, whole, seen = requests_of(engine), Cohort.train, []

    def limited(cohort: Cohort) -> None:
        seen.append(len(cohort.ids))
        if len(cohort.ids) > 2:
            raise torch.cuda.OutOfMemoryError("simulated")
        whole(cohort)

    monkeypatch.setattr(Cohort, "train", limited)
    vectorised = VectorisedClients(engine)
    with pytest.warns(UserWarning, match="memory ran out"):
        replies = kept(vectorised.train(requests))
    assert_same(replies, one_by_one(engine, requests))
    assert seen[:2] == [6, 3]
    seen.clear()
    kept(vectorised.train(requests))
    assert seen == [2, 2, 2]


def test_what_a_step_keeps_is_foretold_from_small_batches() -> None:
    engine = make_engine("finetune")
    found = VectorisedClients(engine).step_bytes(requests_of(engine))
    assert found == Stack(engine, 2, 20).kept_bytes(7)
    # At least the three normalised maps of 8x8, 8x8 and 4x4 pixels.
    assert found > 7 * 4 * (64 * 8 + 64 * 8 + 16 * 16)


@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (1, 2, 0), (7, 2, 3)])
def test_a_convolution_as_a_product_has_the_same_sums(size: int, stride: int, padding: int) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 5, size, stride, padding, bias=False).double()
    product = ProductConv(3, 5, size, stride, padding, bias=False).double()
    product.load_state_dict(plain.state_dict())
    images = torch.rand(2, 3, 9, 10, dtype=torch.double, requires_grad=True)
    expected, found = plain(images), product(images)
    assert torch.allclose(found, expected)
    weights = torch.rand_like(expected)
    gradients = [
        torch.autograd.grad((o * weights).sum(), (images, m.weight)) for o, m in ((expected, plain), (found, product))
    ]
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
@pytest.mark.parametrize("convolutions", ["grouped", "products"])
def test_captured_steps_agree_and_repeat_to_the_byte(device: str, convolutions: Any) -> None:
    ends = []
    for _ in range(2):
        engine = make_engine("finetune", device=device)
        vectorised = VectorisedClients(engine, convolutions)
        for round in range(4):  # eager, captured, replayed, replayed
            engine.round = round
            requests = requests_of(engine)
            ours = kept(vectorised.train(requests))
            assert_same(ours, one_by_one(engine, requests), 1e-4)
            engine.model.load(torch.stack([r["weights"] for r in ours.values() if "weights" in r]).mean(0))
        assert vectorised._stack.graphs  # type: ignore[union-attr]
        ends.append(engine.model.vector.clone())
    assert torch.equal(*ends)
