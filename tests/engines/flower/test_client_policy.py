"""A client's policy decides what leaves it, whatever the server asks; it holds after a restart of the client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from local_grid import NODE, LocalGrid
from own_images import OWNERS, own_config, write_owners

from fedfeat.config.config import Config
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.engines.flower.client import ClientSettings, FederationClient
from fedfeat.engines.flower.codec import Packed, pack, unpack
from fedfeat.engines.flower.messages import PROTOCOL, Header, config_to_send
from fedfeat.engines.flower.policy import ClientPolicy, read_policy
from fedfeat.engines.inprocess import InProcessEngine
from fedfeat.runs import deploy
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.server_app import run_in

PRIVATE = {"model": {"norm": "group"}, "privacy": {"clip": 1.0, "noise": 0.5}}
STRICT = ClientPolicy(own_data=True, clip=1.0, noise=0.5, fewest_images=5, one_answer=True, methods=("finetune",))


def client_with(tmp_path: Path, policy: ClientPolicy | None = None) -> FederationClient:
    """A client with images of its own; made again it is the same client, started again."""
    data = tmp_path / "data" / "clinic-a"
    if not data.exists():
        write_owners(tmp_path / "data")
    given = {} if policy is None else {"policy": policy}
    return FederationClient(ClientSettings(tmp_path / "state", "a", device="cpu", **given), data)  # type: ignore[arg-type]


def greeting(config: Config, run: str = "r1", **changes: Any) -> Header:
    return {"protocol": PROTOCOL, "run": run, "config": {**config_to_send(config), **changes}}


def request_at(task: int = 0, round: int = 0, **changes: Any) -> Header:
    place = {"run": "r1", "op": "train", "task": task, "round": round, "client": 0, "generation": 0}
    return {**place, **changes}


def model_for(config: Config, task: int = 0) -> torch.Tensor:
    return Experiment(config, engine=InProcessEngine).engine.begin_task(task)


def weights(answer: tuple[Header, Packed]) -> torch.Tensor:
    assert "failed" not in answer[0], answer[0]
    return tensor_of(unpack(answer[1]), "weights")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": {"name": "folder"}, "scenario": {"tasks": 2, "clients": 3}}, "set data.name = 'owned'"),
        ({"privacy": {}}, "clipped to 1"),
        ({"privacy": {"clip": 2.0, "noise": 0.5}}, "clipped to 1"),
        ({"privacy": {"clip": 1.0}}, "noise of 0.5"),
        ({"privacy": {"clip": 1.0, "noise": 0.4}}, "noise of 0.5"),
        ({"method": "herding"}, "not among finetune"),
    ],
)
def test_a_run_beyond_the_policy_is_refused_with_one_sentence(
    tmp_path: Path, changes: Mapping[str, Any], named: str
) -> None:
    hello = client_with(tmp_path, STRICT).hello(greeting(own_config("finetune", **PRIVATE), **changes))
    assert named in hello["refused"]
    assert hello["refused"].startswith("policy: ")
    assert "classes" not in hello
    assert "refused" not in client_with(tmp_path, STRICT).hello(greeting(own_config("finetune", **PRIVATE)))


@pytest.mark.parametrize("policy", [None, STRICT])
def test_a_second_hello_cannot_drop_clip_and_noise(tmp_path: Path, policy: ClientPolicy | None) -> None:
    config = own_config("finetune", **PRIVATE)
    assert "refused" not in client_with(tmp_path, policy).hello(greeting(config))
    for client in (client_with(tmp_path, policy), client_with(tmp_path, policy)):
        told = client.hello(greeting(config, privacy={}))["refused"]
        assert "privacy" in told
        assert told.startswith("policy: " if policy else "the server changed settings of a run that has begun")
        assert "failed" not in client.ask(request_at(), pack({"weights": model_for(config)}))[0]
        assert client.run is not None
        assert client.run.config.privacy.noise == 0.5


def test_many_questions_about_one_round_get_one_answer(tmp_path: Path) -> None:
    """Forty replies to one round would average the noise away."""
    config = own_config("finetune", **PRIVATE)
    client_with(tmp_path, STRICT).hello(greeting(config))
    sent = model_for(config)
    first = weights(client_with(tmp_path, STRICT).ask(request_at(), pack({"weights": sent})))
    (tmp_path / "state" / "r1" / "store" / "objects").rename(tmp_path / "gone")  # the stored reply with it
    for number in range(5):
        client = client_with(tmp_path, STRICT)  # it was started again
        assert torch.equal(weights(client.ask(request_at(), pack({"weights": sent}))), first)
        other: Payload = {"weights": sent + 1e-6 * (number + 1)}
        header, reply = client.ask(request_at(), pack(other))
        assert "was answered, and another request came; each is answered once" in header["failed"]
        assert unpack(reply) == {}
    later = client_with(tmp_path, STRICT)
    weights(later.ask(request_at(round=1), pack({"weights": first})))
    earlier = client_with(tmp_path, STRICT).ask(request_at(), pack({"weights": sent + 1}))
    assert "was answered" in earlier[0]["failed"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"round": 4}, "no task 1 with a round 5"),
        ({"round": -1}, "no task 1 with a round 0"),
        ({"task": 2}, "no task 3"),
        ({"client": 1}, "not client 1"),
        ({"op": "evaluate"}, "the operation 'evaluate' is not among train"),
    ],
)
def test_a_place_that_the_run_does_not_have_is_refused(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    config = own_config("finetune", **PRIVATE)
    client = client_with(tmp_path, STRICT.model_copy(update={"operations": ("train",)}))
    client.hello(greeting(config))
    sent = model_for(config)
    weights(client.ask(request_at(), pack({"weights": sent})))
    assert named in client.ask(request_at(**{"round": 1, **changed}), pack({"weights": sent}))[0]["failed"]


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ({"fewest_images": 17}, "fewer than 17 images"),
        ({"most_bytes": 5000}, "more than 5000 bytes"),
        ({"most_updates": 0}, "0 updates have left"),
    ],
)
def test_too_few_images_too_many_bytes_or_updates_are_refused(
    tmp_path: Path, policy: dict[str, Any], named: str
) -> None:
    config = own_config("finetune", **PRIVATE)
    client = client_with(tmp_path, ClientPolicy(**policy))
    client.hello(greeting(config))
    header, reply = client.ask(request_at(), pack({"weights": model_for(config)}))
    assert named in header["failed"]
    assert unpack(reply) == {}


def test_updates_are_counted_over_runs_and_restarts(tmp_path: Path) -> None:
    config, policy = own_config("finetune", **PRIVATE), ClientPolicy(most_updates=2)
    sent = pack({"weights": model_for(config)})
    for run, left in (("r1", 1), ("r2", 2), ("r3", 2)):
        client = client_with(tmp_path, policy)
        client.hello(greeting(config, run))
        header, _ = client.ask(request_at(run=run), sent)
        assert ("failed" in header) == (run == "r3"), header
        again, _ = client_with(tmp_path, policy).ask(request_at(run=run), sent)
        assert ("failed" in again) == (run == "r3"), "a stored reply costs nothing"
        assert client.run is not None
        assert client.run.account.updates == left


def test_a_federation_within_the_policies_of_its_clients_runs_to_its_end(tmp_path: Path) -> None:
    config = own_config("finetune", train={"rounds": 2}, **PRIVATE)
    policy = STRICT.model_copy(update={"fewest_images": 1})
    data = write_owners(tmp_path / "data")
    nodes = {
        NODE + k: FederationClient(ClientSettings(tmp_path / name, name, device="cpu", policy=policy), data[name])
        for k, name in enumerate(OWNERS)
    }
    deploy.prepare_run(config, tmp_path / "run")
    assert run_in(tmp_path / "run", LocalGrid(nodes))["rounds_with_fewer_clients"] == []


def test_a_policy_file_is_read_and_its_mistakes_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('own_data = true\nclip = 1.0\nnoise = 20.0\nmethods = ["herding+feat"]\n')
    assert read_policy(path) == ClientPolicy(own_data=True, clip=1.0, noise=20.0, methods=("herding+feat",))
    path.write_text("clips = 1.0\nnoise = -1\n")
    with pytest.raises(ConfigError, match=r"noise: .*greater than 0.*unknown key 'clips'"):
        read_policy(path)
    with pytest.raises(ConfigError, match="no such policy file"):
        read_policy(tmp_path / "other.toml")
