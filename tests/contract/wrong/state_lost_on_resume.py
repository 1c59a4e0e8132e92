"""Wrong: the server's momentum is an attribute of its step, which no checkpoint holds."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from fedfeat.api import Method, NoSettings, Payload, Server, ServerStep, addon


class Momentum(ServerStep):
    def __init__(self) -> None:
        self.velocity = None
        self.before = None

    def broadcast(self, server: Server) -> Payload:
        self.before = server.progress.weights
        return {}

    def after_round(self, server: Server, replies: Mapping[int, Payload]) -> None:
        moved = server.progress.weights - self.before
        if self.velocity is None or len(self.velocity) != len(moved):
            self.velocity = torch.zeros_like(moved)
        self.velocity = 0.5 * self.velocity + moved
        server.progress.weights = self.before + self.velocity


@addon("server_momentum", NoSettings, examples=("replay+server_momentum",))
def server_momentum(method: Method, settings: NoSettings) -> Method:
    """Momentum on the server."""
    return replace(method, server_steps=(*method.server_steps, Momentum()))
