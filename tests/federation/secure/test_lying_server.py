"""A server that lies about who takes part, who left, and what it asked before: clients do not give what it needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from masked_toys import MASKED, LyingServer

from fedfeat.core.errors import ConfigError, Refusal
from fedfeat.core.payload import tensor_of
from fedfeat.engines.flower import certificates
from fedfeat.federation.secure.client import KEYS, UNMASK, context_of
from fedfeat.federation.secure.masks import KEY_BYTES, add_mask, agreed, public_key
from fedfeat.federation.secure.protocol import ClientSession, commitment
from fedfeat.federation.secure.shamir import secret_from
from fedfeat.federation.secure.signing import SIGNATURE_BYTES, Identity


@pytest.fixture
def server(tmp_path: Path) -> LyingServer:
    made = LyingServer(tmp_path, fewest_clients=2)
    made.share()
    return made


def forged_keys(client: int) -> torch.Tensor:
    """Keys of the server's own making."""
    row = ClientSession(bytes(32), b"", client).advertised() + bytes(SIGNATURE_BYTES)
    return torch.frombuffer(bytearray(row), dtype=torch.uint8)[None]


def own_mask(share: torch.Tensor) -> bytes:
    return share.numpy().tobytes()


def test_nobody_tells_both_secrets_of_a_client(server: LyingServer) -> None:
    for k in server.everybody:
        server.masked(k)
    shares = server.unmask(0, [0, 1, 2])
    with pytest.raises(Refusal, match="unmask of this sum was answered, and another request came"):
        server.unmask(0, [0, 1])  # now the pairs of client 2
    with pytest.raises(Refusal):
        server.unmask(0, [0, 2])
    assert torch.equal(server.unmask(0, [0, 1, 2]), shares)  # the same request gets the same bytes


def test_different_stories_for_different_clients_give_too_few_shares_of_each_kind(server: LyingServer) -> None:
    """Client 0 hears that 2 stayed, client 1 that it left: with two shares needed, neither secret of 2 is known."""
    for k in server.everybody:
        server.masked(k)
    of_mask = own_mask(server.unmask(0, [0, 1, 2])[2])
    of_pairs = own_mask(server.unmask(1, [0, 1])[2])
    advertised = server.keys[2].numpy().tobytes()
    for share, place in ((of_mask, 0), (of_pairs, 1)):
        secret = secret_from({place: share})
        assert secret is None or commitment(secret) != advertised[2 * KEY_BYTES : 3 * KEY_BYTES]
        assert secret is None or public_key(secret) != advertised[KEY_BYTES : 2 * KEY_BYTES]
    # Two honest answers of the same kind are enough, so the shares above were real ones.
    other = LyingServer(server.engine.folder / "honest", fewest_clients=2)  # type: ignore[operator]
    other.share()
    for k in (0, 1):
        other.masked(k)
    found = secret_from({k: own_mask(other.unmask(k, [0, 1])[2]) for k in (0, 1)})
    assert found is not None
    assert public_key(found) == other.keys[2].numpy().tobytes()[KEY_BYTES : 2 * KEY_BYTES]


def test_no_sum_of_too_few_is_opened(tmp_path: Path) -> None:
    server = LyingServer(tmp_path, clients=5)
    server.share()
    for k in range(3):
        server.masked(k)
    with pytest.raises(Refusal, match="2 clients are left in a sum that needs 3"):
        server.unmask(0, [0, 1])
    with pytest.raises(Refusal, match="said to have left, and its reply is there"):
        server.unmask(0, [1, 2, 3])
    with pytest.raises(Refusal, match="2 clients are left"):
        server.masked(4, [3, 4])
    alone = LyingServer(tmp_path / "alone", clients=5)
    alone.keys = {k: alone.ask(KEYS, k)[KEYS] for k in range(5)}  # type: ignore[misc]
    with pytest.raises(Refusal, match="2 clients are left in a sum that needs 3"):
        alone.told_keys(0, [0, 1])


def test_keys_of_strangers_twins_and_others_in_its_name_are_refused(tmp_path: Path) -> None:
    server = LyingServer(tmp_path)
    server.keys = {k: server.ask(KEYS, k)[KEYS] for k in range(3)}  # type: ignore[misc]
    mine, yours, theirs = (server.keys[k] for k in range(3))
    forged = forged_keys(0)
    for keys in ([forged, yours, theirs], [mine, yours, yours], [yours, mine, theirs]):
        with pytest.raises(Refusal, match="not those that were advertised"):
            server.told_keys(0, [0, 1, 2], torch.cat(keys))
    for clients in ([0, 1, 7], [1, 0, 2], [0, 1, 1]):
        with pytest.raises(Refusal):
            server.told_keys(0, clients, torch.cat([mine, yours, theirs]))
    with pytest.raises(Refusal):  # no refused list of keys is masked with later
        server.masked(0)
    server.share()
    with pytest.raises(Refusal, match="not in this sum before"):
        server.masked(0, [0, 1, 2, 3])


@pytest.fixture
def signed(tmp_path: Path) -> LyingServer:
    """Three clients that know each other's public keys."""
    (tmp_path / "peers").mkdir()
    server = LyingServer(tmp_path)
    for k in server.everybody:
        key = certificates.new_key()
        (tmp_path / f"{k}.key").write_bytes(certificates.private_openssh(key))
        (tmp_path / "peers" / f"{k}.pub").write_bytes(certificates.public_openssh(key, f"client-{k}"))
        server.engine.identities[k] = Identity(tmp_path / f"{k}.key", tmp_path / "peers")
    return server


def test_peers_that_know_each_other_add_up_and_the_same_keys_are_told_again(signed: LyingServer) -> None:
    signed.share()
    keys = dict(signed.keys)
    signed.share()
    assert all(torch.equal(keys[k], signed.keys[k]) for k in keys)
    assert len(tensor_of(signed.masked(0), "weights")) == 3


def test_a_server_cannot_put_its_own_keys_in_the_place_of_a_clients(signed: LyingServer) -> None:
    signed.keys = {k: signed.ask(KEYS, k)[KEYS] for k in signed.everybody}  # type: ignore[misc]
    mine, yours, theirs = (signed.keys[k] for k in range(3))
    forged = forged_keys(2)
    moved = torch.cat([forged[:, : 3 * KEY_BYTES], theirs[:, 3 * KEY_BYTES :]], dim=1)
    signed.engine.round = 1
    earlier = signed.ask(KEYS, 2)[KEYS]
    signed.engine.round = 0
    for other in (forged, moved, earlier):
        with pytest.raises(Refusal, match="keys of client 2 are not signed by a peer of the policy"):
            signed.told_keys(0, [0, 1, 2], torch.cat([mine, yours, other]))  # type: ignore[list-item]
    # Two clients of one owner are one peer: the second would be the server's.
    peers = signed.engine.identities[0].peers
    assert peers is not None
    (peers / "2.pub").unlink()
    with pytest.raises(Refusal, match="client 2 are not signed"):
        signed.told_keys(0, [0, 1, 2])
    (peers / "2.pub").write_text("nonsense")
    with pytest.raises(ConfigError, match="expected an elliptic-curve public key"):
        signed.told_keys(0, [0, 1, 2])


def test_a_share_that_was_sealed_for_somebody_else_is_worth_nothing(server: LyingServer) -> None:
    for k in server.everybody:
        server.masked(k)
    for k, sealed in enumerate((server.sealed_for(1), server.sealed_for(1) ^ 1, server.sealed_for(2).flip(0))):
        shares = server.unmask(k, [0, 1, 2], sealed)
        assert [bool(share.any()) for share in shares] == [peer == k for peer in range(3)], "nothing but its own"
        with pytest.raises(Refusal, match="unmask of this sum was answered"):
            server.unmask(k, [0, 1, 2])


def test_a_mask_covers_one_reply(server: LyingServer) -> None:
    """The same request gets the same bytes, also from a client that was started again; no other gets any."""
    first = server.masked(0)
    assert torch.equal(tensor_of(server.masked(0), "weights"), tensor_of(first, "weights"))
    with pytest.raises(Refusal, match="masked of this sum was answered, and another request came"):
        server.masked(0, [0, 1])
    server.weights = torch.ones(3)
    with pytest.raises(Refusal, match="masked of this sum was answered"):
        server.masked(0)
    server.weights = torch.zeros(3)
    server.engine.replies[0]["weights"] = torch.ones(3)  # type: ignore[index]
    with pytest.raises(Refusal, match="answered otherwise before"):
        server.masked(0)


def test_a_reply_goes_into_one_sum(server: LyingServer) -> None:
    keys = {k: server.ask(KEYS, k)[KEYS] for k in server.everybody}
    server.session = "other"
    again = {k: server.ask(KEYS, k)[KEYS] for k in server.everybody}  # nothing has left: a new sum, new keys
    assert not any(torch.equal(keys[k], again[k]) for k in keys)  # type: ignore[arg-type]
    server.session = "5e55"
    with pytest.raises(Refusal, match="no keys for"):
        server.masked(0)
    server.session = "other"
    server.share()
    server.masked(0)
    server.session = "third"
    with pytest.raises(Refusal, match="was for another sum, and the difference of two sums would reveal a reply"):
        server.ask(KEYS, 0)
    server.engine.round = 3
    server.ask(KEYS, 0)
    server.share()
    server.masked(0)
    server.engine.round = 1
    with pytest.raises(Refusal, match="was for another sum"):  # rounds do not run backwards
        server.ask(KEYS, 0)


def test_sums_that_are_begun_for_later_rounds_make_a_client_forget_nothing(server: LyingServer) -> None:
    server.masked(0)
    for later in (4, 5, 6):
        server.engine.round = later
        server.ask(KEYS, 0)
    server.engine.round, server.session = 0, "other"
    with pytest.raises(Refusal, match="was for another sum"):
        server.ask(KEYS, 0)


def test_one_client_cannot_be_asked_as_two(server: LyingServer) -> None:
    notes = server.engine.client(0)
    with pytest.raises(Refusal, match="not client 1 of this sum"):
        notes.answer({"op": f"train.{UNMASK}", "client": 1, "task": 0, "round": 0}, {"secure.session": "5e55"}, "")
    with pytest.raises(Refusal, match="not a phase of a sum"):
        notes.answer({"op": f"evaluate.{KEYS}", "client": 0, "task": 0, "round": 0}, {"secure.session": "5e55"}, "")
    with pytest.raises(Refusal, match="would send loss without a mask"):
        notes.masked({"op": "probe", "client": 0, "task": 0, "round": 0}, {}, "", {"loss": 1.0}, ())


def chi_square(numbers: torch.Tensor) -> float:
    """Of the bytes of 32-bit numbers against the uniform distribution; about 255, and 23 its deviation."""
    counts = np.bincount(np.frombuffer(numbers.numpy().tobytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_masked_reply_looks_like_noise_and_still_does_without_the_masks_of_its_peers(tmp_path: Path) -> None:
    """A server with the peers on its side can take pairwise masks off; the own mask is left."""
    server = LyingServer(tmp_path, clients=3)
    server.weights = torch.zeros(5000)
    server.engine.replies = {k: {**r, "weights": torch.full((5000,), 0.01)} for k, r in server.engine.replies.items()}
    server.share()
    seen = tensor_of(server.masked(0), "weights")
    assert chi_square(seen) < 255 + 8 * 23
    numbers = {"weights": seen.numpy().copy().view(np.uint32)}
    for peer in (1, 2):
        notes = server.engine.client(peer).sessions["0.0.train"]
        session = ClientSession(bytes.fromhex(notes["seed"]), context_of("5e55", "train"), peer)
        key = server.keys[0].numpy().tobytes()[KEY_BYTES : 2 * KEY_BYTES]
        add_mask(numbers, agreed(session._secret("masking"), key, b"fedfeat 5e55 train masks 0 and %d" % peer), -1)
    bare = torch.from_numpy(numbers["weights"].view(np.int32))
    assert not torch.equal(bare, seen)
    assert chi_square(bare) < 255 + 8 * 23
    # With the own mask off as well the reply is bare, and the statistic says so.
    notes = server.engine.client(0).sessions["0.0.train"]
    own = ClientSession(bytes.fromhex(notes["seed"]), b"", 0)._secret("own mask")
    add_mask(numbers, own, -1)
    assert len(np.unique(numbers["weights"])) == 1
    assert chi_square(torch.from_numpy(numbers["weights"].view(np.int32))) > 10_000
    assert MASKED in notes["answers"]
