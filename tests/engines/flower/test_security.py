"""TLS, node keys and the gateway in front of a real SuperLink: who gets in, who does not."""

from __future__ import annotations

import base64
import datetime
import json
import os
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from federations import eventually
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node

from fedfeat.engines.flower import certificates, keys
from fedfeat.engines.flower.addresses import split_address
from fedfeat.engines.flower.app import app_files
from fedfeat.engines.flower.codec import pack
from fedfeat.engines.flower.control import Control, ControlError
from fedfeat.engines.flower.messages import Reply
from fedfeat.engines.flower.processes import GatewayProcess, ProcessError, SuperLink, SuperNode
from fedfeat.engines.flower.roster import Roster, read_roster
from fedfeat.engines.flower.superlink import account_of
from fedfeat.runs import deploy

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@dataclass
class Federation:
    """A server with TLS and node keys behind its gateway."""

    folder: Path
    server: deploy.Server
    control: Control
    node_ids: dict[str, int]

    @property
    def link(self) -> SuperLink:
        return self.server.link

    @property
    def port(self) -> int:
        """Of the gateway."""
        return split_address(self.server.address)[1]

    @property
    def address(self) -> str:
        """Of the gateway, as clients on this machine see it."""
        return f"127.0.0.1:{self.port}"

    def online(self) -> list[str]:
        return sorted(node.name for node in self.control.nodes() if node.online)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("federation")
    keys.make_keys(folder / "keys", ["fl.example.org"], ["client-0", "client-1"])
    known = keys.read_server_keys(folder / "keys" / "server")
    with (
        deploy.server(folder / "server", host="0.0.0.0", keys=known, database=True) as server,
        Control(server.link.address, server.link.ca) as control,
    ):
        yield Federation(folder, server, control, control.register_exactly(known.clients))


def test_a_client_with_an_unknown_key_ends(federation: Federation, tmp_path: Path) -> None:
    key = tmp_path / "stranger.key"
    key.write_bytes(certificates.private_openssh(certificates.new_key()))
    before = federation.online()
    node = SuperNode(tmp_path, "node", federation.address, ca=federation.link.ca, key=key).start()
    try:
        eventually(lambda: node.state()["last_exit"] == 1, 60, "the stranger giving up")
        assert "Exit Code: 305" in node.log.read_text(), node.tail()
        assert federation.online() == before
    finally:
        node.stop()


def test_a_plaintext_client_stays_out(federation: Federation) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{federation.address}/v1/fleet/pull-messages", content=b"")


def test_a_server_of_another_authority_or_name_is_not_trusted(federation: Federation, tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    authority = certificates.make_authority(certificates.new_key())
    other.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    # 127.0.0.2 is this machine too, but not in the certificate.
    for host, ca in (("127.0.0.1", other), ("127.0.0.2", federation.link.ca)):
        context = ssl.create_default_context(cafile=ca)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"https://{host}:{federation.port}/health", verify=context)


def test_old_protocols_are_refused(federation: Federation) -> None:
    context = ssl.create_default_context(cafile=federation.link.ca)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", federation.port), 5) as plain,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_the_control_interface_is_closed_to_the_outside(federation: Federation, tmp_path: Path) -> None:
    with Control(federation.address, federation.link.ca) as outside:
        stranger = certificates.new_key().public_key()
        pem = stranger.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        with pytest.raises(ControlError, match="403"):
            outside.nodes()
        with pytest.raises(ControlError, match="403"):
            outside.start(app_files(), {"folder": str(tmp_path / "never")})
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            outside._client.RegisterNode(RegisterNodeRequest(public_key=pem))
    assert len(federation.control.nodes()) == 2


def test_every_path_of_the_superlink_but_the_fleet_is_closed_to_the_outside(federation: Federation) -> None:
    context = ssl.create_default_context(cafile=federation.link.ca)
    with urllib.request.urlopen(f"https://{federation.link.address}/openapi.json", context=context) as reply:
        paths = json.load(reply)["paths"]
    closed = [path for path in paths if not path.startswith("/v1/fleet/") and path != "/health"]
    assert any("/v1/control/" in path for path in closed)
    assert any("/v1/runtime/" in path for path in closed)
    with httpx.Client(verify=context, base_url=f"https://{federation.address}") as outside:
        statuses = {outside.post(path, content=b"").status_code for path in [*closed, "/docs", "/openapi.json"]}
        assert statuses == {403}
        assert outside.get("/health").status_code == 200


def test_the_superlink_itself_listens_on_the_loopback_address_only(federation: Federation) -> None:
    socket.create_connection(("127.0.0.1", federation.link.port), 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", federation.link.port), 5)
    socket.create_connection(("127.0.0.2", federation.port), 5).close()


class Signer:
    """Signs requests as a SuperNode does, or as an impostor would."""

    def __init__(self, federation: Federation, key: ec.EllipticCurvePrivateKey) -> None:
        self.federation, self.key = federation, key
        self.pem = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def post(self, path: str, body: bytes, age: float = 0.0, claims: bytes | None = None) -> int:
        """Send a signed request through the gateway, signed `age` seconds ago, with another's key if claimed."""
        time = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat()
        headers = {
            "content-type": "application/protobuf",
            "flwr-public-key": base64.b64encode(claims or self.pem).decode(),
            "flwr-timestamp": time,
            "flwr-signature": base64.b64encode(self.key.sign(time.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
        }
        context = ssl.create_default_context(cafile=self.federation.link.ca)
        with httpx.Client(verify=context, base_url=f"https://{self.federation.address}") as outside:
            return outside.post(path, content=body, headers=headers).status_code


def client_key(federation: Federation, name: str) -> ec.EllipticCurvePrivateKey:
    content = (federation.folder / "keys" / "clients" / name / f"{name}.key").read_bytes()
    key = serialization.load_ssh_private_key(content, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def test_the_fleet_path_itself_asks_for_a_registered_key_a_fresh_signature_and_the_own_node(
    federation: Federation,
) -> None:
    known, stranger = Signer(federation, client_key(federation, "client-0")), Signer(federation, certificates.new_key())
    own = PullMessagesRequest(node=Node(node_id=federation.node_ids["client-0"])).SerializeToString()
    others = PullMessagesRequest(node=Node(node_id=federation.node_ids["client-1"])).SerializeToString()
    pull = "/v1/fleet/pull-messages"
    assert known.post(pull, own) == 200, "otherwise the refusals below prove nothing"
    assert known.post(pull, others) == 401, "another client's messages"
    assert known.post(pull, own, age=3600) == 401, "a recorded request"
    assert stranger.post(pull, own) == 401, "an unknown key"
    context = ssl.create_default_context(cafile=federation.link.ca)
    headers = {"content-type": "application/protobuf"}
    keyless = httpx.post(f"https://{federation.address}{pull}", content=own, headers=headers, verify=context)
    assert keyless.status_code == 401, "no key"
    assert stranger.post(pull, own, claims=known.pem) == 401, "a known key with a stranger's signature"
    register = RegisterNodeFleetRequest(public_key=stranger.pem).SerializeToString()
    assert stranger.post("/v1/fleet/register-node", register) >= 400, "registering oneself"
    activate = ActivateNodeRequest(public_key=stranger.pem, heartbeat_interval=30).SerializeToString()
    assert stranger.post("/v1/fleet/activate-node", activate) >= 400
    assert len(federation.control.nodes()) == 2


def test_a_client_that_is_unregistered_is_shut_out(federation: Federation, tmp_path: Path) -> None:
    key = certificates.new_key()
    signer = Signer(federation, key)
    node_id = federation.control.register(signer.pem, "guest")
    assert federation.control.register(signer.pem, "guest") == node_id, "registering twice changes nothing"
    pull = PullMessagesRequest(node=Node(node_id=node_id)).SerializeToString()
    assert signer.post("/v1/fleet/pull-messages", pull) == 200
    server = keys.read_server_keys(federation.folder / "keys" / "server")
    assert federation.control.register_exactly(server.clients) == federation.node_ids
    assert signer.post("/v1/fleet/pull-messages", pull) == 401


def test_a_key_that_was_shut_out_is_not_accepted_again_and_harms_no_other(federation: Federation) -> None:
    signer = Signer(federation, certificates.new_key())
    known = keys.read_server_keys(federation.folder / "keys" / "server").clients
    federation.control.unregister(federation.control.register(signer.pem, "guest"))
    assert federation.control.register_exactly({"guest": signer.pem, **known}) == federation.node_ids


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root, to act as another account")
def test_another_account_of_the_machine_is_refused(federation: Federation) -> None:
    context = ssl.create_default_context(cafile=federation.link.ca)
    with httpx.Client(verify=context, base_url=f"https://{federation.link.address}") as asking:
        os.seteuid(65534)  # whose socket it is, is decided when it is made
        try:
            assert asking.post("/v1/control/list-nodes", content=b"").status_code == 403
            assert asking.post("/v1/runtime/x", content=b"").status_code == 403
            assert asking.get("/openapi.json").status_code == 403
            assert asking.get("/health").status_code == 200
        finally:
            os.seteuid(0)
    with httpx.Client(verify=context, base_url=f"https://{federation.link.address}") as asking:
        assert asking.get("/openapi.json").status_code == 200


def test_whose_a_connection_is() -> None:
    table = [
        " 0: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000 0 11 1 0",
        " 1: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001 0 12 1 0",
        " 2: 0100007F:9C41 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0 0  0 1 0",
        " 3: 0100007F:9C42 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0 0 13 1 0",
    ]
    assert account_of(("127.0.0.1", 40000), 8080, table) == 1001
    for port, why in ((40001, "closed by its owner"), (40002, "on its way out"), (40003, "not there")):
        assert account_of(("127.0.0.1", port), 8080, table) is None, why
    assert account_of(("::1", 40000), 8080, table) is None


class OneClient:
    """In the place of the channel: one client, with the name of its key and the name that it gives."""

    def __init__(self, registered: str, said: str) -> None:
        self.registered, self.said = registered, said

    def nodes(self) -> dict[int, str]:
        return {7: self.registered}

    def send(self, kind: str, requests: dict[int, object], deadline: float) -> Iterator[tuple[int, Reply]]:
        hello = {"name": self.said, "client": None, "data": "same", "generation": 0, "exemplars": 0}
        yield from ((node, Reply(hello, pack({}), 0.0)) for node in requests)


@pytest.mark.parametrize(("registered", "counts"), [("hospital-b", "hospital-b"), ("", "hospital-a")])
def test_a_client_goes_by_the_name_of_its_key_whatever_it_says(tmp_path: Path, registered: str, counts: str) -> None:
    roster = Roster(tmp_path, OneClient(registered, "hospital-a"), 3, {"data": "same"}, 1.0)  # type: ignore[arg-type]
    roster.refresh()
    assert roster.members == {0: 7}
    assert list(read_roster(tmp_path)[1]) == [counts]


def test_a_gateway_without_certificates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="needs certificates"):
        GatewayProcess(tmp_path, SuperLink(tmp_path), host="127.0.0.1")
