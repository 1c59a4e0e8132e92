"""Three clients as processes of their own with TLS, keys and policies: masked sums give the bytes of the simulation."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from federations import processes_that_mention

from fedfeat.engines.flower import keys
from fedfeat.engines.flower.addresses import split_address
from fedfeat.engines.flower.roster import read_roster
from fedfeat.runs import deploy
from fedfeat.runs.experiment import start
from toy import toy_config, write_toy
from toy_runs import weights

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
NAMES = ["client-0", "client-1", "client-2"]
POLICY = """
secure_aggregation = true
peers = "keys/server/clients"
fewest_clients = 3
clip = 0.5
noise = 0.01
one_answer = true
operations = ["train", "keep_random"]
"""


def test_a_federation_with_tls_keys_policies_clip_noise_and_masks(tmp_path: Path) -> None:
    """The images are public here, so noise comes from the seed and can be repeated; owners draw theirs in secret."""
    data = str(write_toy(tmp_path / "toy.npz"))
    config = toy_config(
        "replay+feat",
        data={"path": data},
        scenario={"tasks": 2},
        train={"rounds": 2},
        model={"norm": "group"},
        federation={"poll": 0.05},
        privacy={"secure_aggregation": True, "clip": 0.5, "noise": 0.01},
    )
    (tmp_path / "policy.toml").write_text(POLICY)
    keys.make_keys(tmp_path / "keys", ["fl.example.org"], NAMES)
    known = keys.read_server_keys(tmp_path / "keys" / "server")
    with ExitStack() as stack:
        server = stack.enter_context(deploy.server(tmp_path / "server", host="0.0.0.0", keys=known))
        address = f"127.0.0.1:{split_address(server.address)[1]}"
        for k, name in enumerate(NAMES):
            options = {"client": k, "device": "cpu", "data": data, "policy": str(tmp_path / "policy.toml")}
            mine = keys.read_client_keys(tmp_path / "keys" / "clients" / name)
            # What it calls itself does not matter: the name of its key does.
            stack.enter_context(deploy.client(tmp_path / name, "somebody", address, options, keys=mine))
        result = server.run(deploy.prepare_run(deploy.federated(config), tmp_path / "run"))
    assert processes_that_mention(str(tmp_path)) == []
    assert sorted(read_roster(tmp_path / "run")[1]) == NAMES
    expected = start(config, tmp_path / "here")
    assert result["rounds_with_fewer_clients"] == []
    assert result["accuracy_matrix"] == expected["accuracy_matrix"]
    assert weights(tmp_path / "run") == weights(tmp_path / "here")
    log = (tmp_path / "client-0" / "somebody.log").read_text()
    assert "masked, so that the server learns sums of 3 clients or more" in log
    assert "train.unmask" in log
