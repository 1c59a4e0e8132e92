"""Wrong: a part remembers the clients of a round, so what one of them sends depends on who was asked before."""

from collections.abc import Sequence
from dataclasses import replace

from fedfeat.api import Buffers, Client, Method, NoSettings, Payload, Sent, Statistic, addon, number_of


class Rank(Statistic):
    def __init__(self) -> None:
        self.place = (-1, -1)
        self.most = 0

    def finish(self, client: Client, buffers: Buffers) -> Payload:
        if self.place != (client.task, client.round):
            self.place, self.most = (client.task, client.round), 0
        self.most = max(self.most, len(client.local_set))
        return {"rank.share": len(client.local_set) / self.most}

    def reduce(self, replies: Sequence[Payload]) -> dict[str, float]:
        return {"rank.share": sum(number_of(reply, "rank.share") for reply in replies)}


@addon("rank", NoSettings, sends=(Sent("up/train/rank.share", "its share of the largest client", low=0, high=1),))
def rank(method: Method, settings: NoSettings) -> Method:
    """How large clients are beside the largest one."""
    return replace(method, statistics=(*method.statistics, Rank()))
