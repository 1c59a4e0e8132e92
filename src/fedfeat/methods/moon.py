r"""MOON (model-contrastive federated learning, CVPR 2021), on top of any base.

While a client trains, the representation of an image is drawn to what the received global model makes of it and
pushed away from what the client's own earlier models made of it.

Objective:
    $$
    L = L_{\mathrm{base}} + \frac{\mu}{B} \sum_x \ell(x), \qquad
    \ell(x) = - \log\,\frac{e^{\cos(r, r_{\mathrm{global}}) / \tau}}
    {e^{\cos(r, r_{\mathrm{global}}) / \tau} + \sum_m e^{\cos(r, r_m) / \tau}}
    $$

    $r$, $r_{\mathrm{global}}$ and $r_m$ are projected features of $x$ by the network in training, by the received
    model, and by earlier models $m$ of the client. In the first local update of a client $\ell = 0$.

Deviations:
    - The projection is beside the classifier, so that classifier, selection and prediction of the base stay as they
      are; `head = "inline"` puts it under the classifier, as published. Either way it makes the model larger.
    - The published average weights clients by their samples; here `train.aggregation` decides, as for every method.
    - Optimiser, learning rate and epochs are those of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Buffers, Capturable, Method, Reference, ReferenceFunction, Statistic, linear_head
from fedfeat.algorithm.registry import addon
from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import Payload, State, Value, number_of, tensor_of
from fedfeat.core.settings import Settings, setting
from fedfeat.models import LinearHead, Network

MOON = "moon"  # the projection's name, the term's and the reference's
VECTOR, TASK = "moon.vector.", "moon.task."  # a client's entries, followed by 0 for the oldest model


class MoonSettings(Settings):
    """Model-contrastive learning."""

    mu: float = setting(
        1.0,
        "weight of the contrast; published: 5 for CIFAR-10, 1 for CIFAR-100 and TinyImageNet",
        origin="default of the released code; the paper takes 5 for CIFAR-10 and 1 for CIFAR-100 and TinyImageNet",
        gt=0,
    )
    tau: float = setting(0.5, "temperature of the contrast", origin="paper and released code", gt=0)
    head: Literal["side", "inline", "none"] = setting(
        "side",
        "projection: used by the contrast alone (side), also under the classifier as in the released "
        "code (inline), or none",
        origin="a choice, see the deviations",
    )
    dim: int = setting(256, "outputs of the projection", origin="released code", ge=1)
    models: int = setting(
        1, "earlier local models that each client keeps, the newest ones", origin="released code", ge=1
    )
    reset_prev_at_task: bool = setting(
        False,
        "forget earlier local models when a task begins",
        origin="a choice: the rule as published, whatever the task",
    )


@addon(MOON, MoonSettings, examples=("fedcbdr+moon", "refed+moon"))
def moon(method: Method, settings: MoonSettings) -> Method:
    """MOON: draw representations to the global model's, away from those of the client's own earlier models."""

    def contrast(step: Step) -> Tensor:
        if MOON not in step.references:
            return step.features.new_zeros(())
        frozen = step.references[MOON]
        return model_contrast(representation(step.network, step.features), frozen[0], frozen[1:], settings.tau)

    method = _with_projection(method, settings)
    return replace(
        method,
        terms=(*method.terms, LossTerm(MOON, contrast, settings.mu)),
        references=(*method.references, FrozenModels(settings)),
        statistics=(*method.statistics, KeepLocalModel(settings)),
        notes=(*method.notes, f"moon: every client keeps {settings.models} earlier model(s), off the device"),
    )


def _with_projection(method: Method, settings: MoonSettings) -> Method:
    if settings.head == "none":
        return method
    if settings.head == "side":
        return replace(method, extras={**method.extras, MOON: lambda dim: projection(dim, settings.dim)})
    if method.head is not linear_head or method.extras:
        raise ConfigError(
            "moon.head: 'inline' puts the projection under a linear classifier, and another part of this method "
            "brings its own classifier or layers; take moon.head = 'side'"
        )
    return replace(method, head=lambda dim, seed, num_classes: InlineHead(dim, settings.dim, seed=seed))


class FrozenModels(Reference):
    """What the received global model and the client's earlier models make of a batch: [1 + M, B, d]."""

    def __init__(self, settings: MoonSettings) -> None:
        self.settings = settings

    def start(self, client: Client, request: Payload) -> ReferenceFunction | None:
        """Load the frozen models; in a client's first local update there is no contrast, and nothing is computed."""
        past = usable(client, self.settings)
        if not past:
            return None
        # Each vector goes into a network of its own task: the head's later rows play no part in a representation.
        networks = [client.frozen("moon.global", tensor_of(request, "weights"), client.task)]
        networks += [client.frozen(f"moon.past.{i}", model.vector, model.task) for i, model in enumerate(past)]

        @torch.no_grad()
        def represent(images: Tensor) -> dict[str, Tensor]:
            return {MOON: torch.stack([representation(n, n.features(images)) for n in networks])}

        return Capturable(represent, kind=tuple(model.task for model in past))


class KeepLocalModel(Statistic):
    """Put the trained model into the client's state, off the device: there are as many as there are clients."""

    def __init__(self, settings: MoonSettings) -> None:
        self.settings = settings

    def finish(self, client: Client, buffers: Buffers) -> Payload:
        """Drop the oldest model for this one; nothing is sent."""
        newest = Past(client.model.vector.to("cpu", copy=True), client.task)
        remember(client.state, [*usable(client, self.settings), newest][-self.settings.models :])
        return {}


def model_contrast(z: Tensor, z_global: Tensor, z_previous: Tensor, tau: float) -> Tensor:
    """Return the mean of ``-log softmax([cos(z, z_global), cos(z, z_previous), ...] / tau)[0]``, a scalar.

    :param z: [B, d], the only input that gradients should reach.
    :param z_global: [B, d]
    :param z_previous: [M, B, d]; with M = 0 there is nothing to tell apart and the loss is exactly 0.
    """
    references = torch.cat([z_global[None], z_previous]).float()
    cosines = F.cosine_similarity(z.float()[None], references, dim=2, eps=1e-8)
    nearest = torch.zeros(len(z), dtype=torch.long, device=z.device)
    return F.cross_entropy(cosines.T / tau, nearest)


class Past(NamedTuple):
    """A client's model at the end of some earlier local update, and the task whose layout it has."""

    vector: Tensor
    task: int


def past_models(state: Mapping[str, Value]) -> list[Past]:
    """Return the models that a client keeps, the oldest first."""
    places = range(sum(key.startswith(VECTOR) for key in state))
    return [Past(tensor_of(state, f"{VECTOR}{i}"), int(number_of(state, f"{TASK}{i}"))) for i in places]


def remember(state: State, models: Sequence[Past]) -> None:
    """Keep these models in place of whatever was kept before."""
    for key in [k for k in state if k.startswith((VECTOR, TASK))]:
        del state[key]
    for place, model in enumerate(models):
        state[f"{VECTOR}{place}"], state[f"{TASK}{place}"] = model


def usable(client: Client, settings: MoonSettings) -> list[Past]:
    """Return the earlier models that count in this task."""
    models = past_models(client.state)
    return [m for m in models if m.task == client.task] if settings.reset_prev_at_task else models


def projection(dim: int, out: int) -> nn.Sequential:
    """Return the published projection: Linear, ReLU, Linear."""
    return nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, out))


def representation(network: Network, features: Tensor) -> Tensor:
    """Return what the contrast compares: the projected features, or the features where nothing projects them."""
    z: Tensor = network.extras[MOON](features) if MOON in network.extras else features
    return z


class InlineHead(LinearHead):
    """The released layout: the linear classifier sees the projection instead of the backbone's features."""

    def __init__(self, dim: int, out: int, *, seed: int) -> None:
        super().__init__(out, seed=seed)
        self.projection = projection(dim, out)

    def feature(self, pooled: Tensor) -> Tensor:
        """Return the projected feature, which classifier, contrast and selection all use."""
        out: Tensor = self.projection(pooled)
        return out
