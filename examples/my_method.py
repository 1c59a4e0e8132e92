"""A method of your own in one file: a rule that chooses exemplars (a base) and a loss term (an add-on)."""

from dataclasses import replace

import torch

from fedfeat.api import (
    Client,
    LossTerm,
    Method,
    Op,
    Payload,
    Settings,
    TaskEnd,
    TaskEndStep,
    addon,
    base,
    number_of,
    setting,
    tensor_of,
)


def keep_unsure(client: Client, request: Payload) -> Payload:
    """Keep the images that the model is least sure of (the client's side); nothing is sent back."""
    client.model.load(tensor_of(request, "weights"))  # clients share one network: load before use
    sure = [client.network.head(f).detach().softmax(1).amax(1) for f in client.features(client.samples)]
    order = torch.cat([client.samples[:0].float(), *sure]).argsort(stable=True)  # a client may hold nothing
    client.keep(client.samples[order[: int(number_of(request, "quota"))]])
    return {}


class _KeepUnsure(TaskEndStep):  # the server's side: what happens at the end of every task but the last
    def ops(self) -> dict[str, Op]:
        return {"keep_unsure": keep_unsure}

    def at_task_end(self, task_end: TaskEnd) -> None:
        quotas, weights = task_end.quotas, task_end.weights
        task_end.exchange.gather("keep_unsure", {k: {"weights": weights, "quota": quotas[k]} for k in task_end.keepers})


@base("unsure")
def unsure(settings: Settings) -> Method:
    """Replay the images that the model was least sure of."""
    return Method("unsure", replay=_KeepUnsure())


class CompactSettings(Settings):
    """Features of one class close together."""

    weight: float = setting(0.1, "weight of the loss", ge=0, alias="lambda")


def spread(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean squared distance of features from the mean of their class in the batch."""
    same = (labels[:, None] == labels[None, :]).to(features)
    return (features - same @ features / same.sum(dim=1, keepdim=True)).square().mean()


@addon("compact", CompactSettings, examples=("unsure+compact",))
def compact(method: Method, settings: CompactSettings) -> Method:
    """Pull features of one class together."""
    term = LossTerm("compact", lambda step: spread(step.features, step.labels), settings.weight)
    return replace(method, terms=(*method.terms, term))
