"""Wrong: every client keeps five images of a class, whatever its quota."""

import torch

from fedfeat.api import Client, Method, NoSettings, Op, Payload, TaskEnd, TaskEndStep, base


def keep_five(client: Client, request: Payload) -> Payload:
    labels = client.labels(client.samples)
    rows = [(labels == c).nonzero().flatten()[:5] for c in labels.unique().tolist()]
    client.keep(client.samples[torch.cat([client.samples[:0], *rows])])
    return {}


class KeepFive(TaskEndStep):
    def ops(self) -> dict[str, Op]:
        return {"keep_five": keep_five}

    def at_task_end(self, task_end: TaskEnd) -> None:
        task_end.exchange.gather("keep_five", {client: {} for client in task_end.keepers})


@base("five", NoSettings)
def five(settings: NoSettings) -> Method:
    """Replay of five images per class."""
    return Method("five", replay=KeepFive())
