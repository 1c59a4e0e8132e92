"""What may leave a client, decided on its own side: a TOML file that no server can change.

The server's configuration is compared with it when a run begins, and every request before it is answered. What is
asked beyond it is refused with one sentence, which both sides read.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from torch import Tensor

from fedfeat.config.config import Config, check_table, read_toml
from fedfeat.core.errors import ConfigError, Refusal
from fedfeat.core.payload import Payload
from fedfeat.core.settings import Settings
from fedfeat.data.settings import OWNED
from fedfeat.federation.evaluation import EVALUATE, TABLES
from fedfeat.federation.secure.signing import read_peers
from fedfeat.federation.secure.sums import FEWEST
from fedfeat.methods import canonical


class PolicyError(Refusal):
    """A request that goes beyond a client's policy."""


class ClientPolicy(Settings):
    """What a client's owner allows; without a file nothing is forbidden."""

    own_data: bool = Field(False, description="the images are this client's own: only runs on owned data, secret draws")
    clip: float | None = Field(None, gt=0, description="largest clipping norm of updates; unset: none is demanded")
    noise: float | None = Field(None, gt=0, description="least noise multiplier; unset: none is demanded")
    secure_aggregation: bool = Field(False, description="replies leave in masked sums alone")
    fewest_clients: int = Field(2, ge=2, description="fewest clients in a masked sum")
    peers: Path | None = Field(
        None, description="folder with the public keys of all clients of masked sums; unset: whoever the server names"
    )
    fewest_images: int = Field(1, ge=1, description="fewest images behind a reply with numbers")
    methods: tuple[str, ...] | None = Field(None, description="methods that may be run; unset: all")
    operations: tuple[str, ...] | None = Field(None, description="operations that are answered; unset: the method's")
    one_answer: bool = Field(False, description="one answer per round and operation; the same request gets it again")
    most_updates: int | None = Field(None, ge=0, description="updates that may leave in all runs together; unset: any")
    most_rollbacks: int = Field(0, ge=0, description="how often a server may go back in a run, to rounds that it had")
    most_bytes: int | None = Field(None, ge=0, description="bytes that are kept here for servers; unset: any number")

    def check_run(self, config: Config) -> None:
        """Refuse a run that asks for more than is allowed."""
        privacy = config.privacy
        if self.own_data and config.data.name != OWNED:
            raise PolicyError(
                f"policy: these images are the client's own, and the server treats them as the data set "
                f"{config.data.name!r:.40}; set data.name = {OWNED!r} there"
            )
        if self.clip is not None and (privacy.clip is None or privacy.clip > self.clip):
            raise PolicyError(f"policy: updates must be clipped to {self.clip:g} or less; set privacy.clip there")
        if self.noise is not None and (privacy.noise is None or privacy.noise < self.noise):
            raise PolicyError(f"policy: updates need noise of {self.noise:g} or more; set privacy.noise there")
        if self.secure_aggregation and not privacy.secure_aggregation:
            raise PolicyError("policy: replies leave in masked sums alone; set privacy.secure_aggregation = true there")
        if privacy.secure_aggregation and (privacy.fewest_clients or FEWEST) < self.fewest_clients:
            raise PolicyError(
                f"policy: a masked sum is of {self.fewest_clients} clients or more; set privacy.fewest_clients there"
            )
        if self.methods is not None and config.method not in map(canonical, self.methods):
            raise PolicyError(f"policy: the method {config.method!r:.80} is not among {', '.join(self.methods)}")

    def check_rollbacks(self, count: int) -> None:
        """Refuse a server that goes back too often: every repeated round is another release."""
        if count > self.most_rollbacks:
            raise PolicyError(
                f"policy: the server went back to earlier rounds of this run ({count} times, {self.most_rollbacks} are "
                "allowed); the client's owner allows it with most_rollbacks"
            )

    def check_request(self, op: str, kept: int, updates: int) -> None:
        """Refuse a request before it is worked on.

        :param kept: bytes on this client's disk, with those of the request.
        :param updates: how many have left so far.
        """
        if self.operations is not None and op not in self.operations:
            raise PolicyError(f"policy: the operation {op!r:.40} is not among {', '.join(self.operations)}")
        if self.most_bytes is not None and kept > self.most_bytes:
            raise PolicyError(f"policy: more than {self.most_bytes} bytes would be kept here")
        if op == "train" and self.most_updates is not None and updates >= self.most_updates:
            raise PolicyError(f"policy: {updates} updates have left this client, and no more may")

    def check_reply(self, op: str, reply: Payload, samples: int) -> None:
        """Refuse to send numbers that rest on too few images.

        :param samples: images of the task that the client holds.
        """
        tables, behind = reply.get(TABLES), reply.get("samples", samples)
        if op == EVALUATE and isinstance(tables, Tensor):
            behind = int(tables[0].sum())
        if reply and isinstance(behind, int) and 0 < behind < self.fewest_images:
            raise PolicyError(f"policy: a reply to {op!r:.40} would rest on fewer than {self.fewest_images} images")


def read_policy(path: Path) -> ClientPolicy:
    """Read a policy; every problem is named at once."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such policy file; check --policy")
    problems: list[str] = []
    policy = check_table(ClientPolicy, read_toml(path), str(path), problems)
    if policy is None:
        raise ConfigError("; ".join(problems))
    if policy.peers is not None:
        policy = policy.model_copy(update={"peers": (folder := path.absolute().parent / policy.peers)})
        read_peers(folder)
    return policy
