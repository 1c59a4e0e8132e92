"""Wrong: says that its choice can wait, and draws it from the round at hand."""

import torch

from fedfeat.api import Client, Method, NoSettings, Op, Payload, TaskEnd, TaskEndStep, base, number_of, rng_at


def keep_by_round(client: Client, request: Payload) -> Payload:
    order = rng_at(client.seed, "by-round", client.task, client.round, client.id).permutation(len(client.samples))
    client.keep(client.samples[torch.from_numpy(order[: int(number_of(request, "quota"))])])
    return {}


class KeepByRound(TaskEndStep):
    by_address = True

    def ops(self) -> dict[str, Op]:
        return {"keep_by_round": keep_by_round}

    def at_task_end(self, task_end: TaskEnd) -> None:
        quotas = {client: {"quota": task_end.quotas[client]} for client in task_end.keepers}
        task_end.exchange.gather("keep_by_round", quotas)


@base("by-round", NoSettings)
def by_round(settings: NoSettings) -> Method:
    """Replay of images that depend on the round in which they are chosen."""
    return Method("by-round", replay=KeepByRound())
