"""Re-Fed+'s rule: keep the samples with the largest gradients along the path of a personalised model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedfeat.federation.payload import Payload, number_of, tensor_of
from fedfeat.settings import Settings

if TYPE_CHECKING:
    from fedfeat.federation.boundary import Boundary
    from fedfeat.federation.client import Client
    from fedfeat.methods.method import Op
    from fedfeat.models import Network


class RefedSettings(Settings):
    """The personalised informative model (PIM)."""

    personal: float = Field(
        0.5, gt=0, lt=1, alias="lambda", description="share of local data against the global model in the PIM"
    )
    passes: int = Field(5, ge=1, description="passes of the PIM over the candidates")
    lr: float = Field(0.01, gt=0, description="learning rate of the PIM, plain SGD")
    norms: Literal["last_layer", "full"] = Field(
        "last_layer", description="gradient norm of the classifier in closed form, or of all parameters"
    )
    scope: Literal["task", "all"] = Field(
        "task",
        description="candidates: the finished task only, or the buffer too (which is then chosen anew)",
    )


class InformativeChoice:
    """Purely local selection; the only thing sent is the final model."""

    after_last = False

    def __init__(self, settings: RefedSettings) -> None:
        self.settings = settings

    def ops(self) -> dict[str, Op]:
        """Clients answer ``keep_informative``."""
        return {"keep_informative": self.keep}

    def at_boundary(self, boundary: Boundary) -> None:
        """Ask every client with a quota."""
        requests: dict[int, Payload] = {
            k: {"weights": boundary.weights, "quota": boundary.quotas[k]} for k in boundary.keepers
        }
        boundary.exchange.gather("keep_informative", requests)

    def keep(self, client: Client, request: Payload) -> Payload:
        """Score the candidates along the PIM's path and keep the highest."""
        quota = int(number_of(request, "quota"))
        everything = self.settings.scope == "all"
        candidates = torch.cat([client.samples, client.exemplars]) if everything else client.samples
        if len(candidates) == 0:
            return {}
        candidates = candidates.sort().values  # positions must not depend on how batches were shuffled
        scores = self.score(client, candidates, tensor_of(request, "weights"))
        if everything:
            quota *= client.task + 1
        best = scores.argsort(descending=True, stable=True)[:quota]
        client.keep(candidates[best], instead=everything)
        return {}

    def score(self, client: Client, candidates: Tensor, global_weights: Tensor) -> Tensor:
        """Return the accumulated gradient norms ``sum_p G_p(x) / p`` of each candidate."""
        model, network = client.model, client.network
        model.load(global_weights)
        buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
        anchor = global_weights[: model.num_trainable].to(model.vector)
        pull = (1 - self.settings.personal) / (2 * self.settings.personal)
        scores = torch.zeros(len(candidates), dtype=torch.float64, device=candidates.device)
        size = client.config.train.batch
        for number in range(1, self.settings.passes + 1):
            for start in range(0, len(candidates), size):
                batch = candidates[start : start + size]
                x, y = client.images.plain(batch), client.labels(batch)
                # Statistics of a single sample would be its own: take the running ones then.
                network.train(len(batch) > 1)
                outputs = network(x)
                F.cross_entropy(outputs.logits, y).backward()  # type: ignore[no-untyped-call]
                if self.settings.norms == "full":
                    norms = _full_norms(network, buffers, x, y)
                else:
                    inputs = network.head.multiplied(outputs.features).detach()
                    norms = last_layer_norms(inputs, outputs.logits.detach(), y, network.head.has_bias)
                scores[start : start + size] += norms.double() / number
                with torch.no_grad():
                    model.gradient.add_(model.weights - anchor, alpha=pull)
                    model.weights.add_(model.gradient, alpha=-self.settings.lr)
                    model.gradient.zero_()
        return scores


def last_layer_norms(features: Tensor, logits: Tensor, labels: Tensor, has_bias: bool = True) -> Tensor:
    """Return the norm of each sample's cross-entropy gradient with respect to a linear classifier, in closed form.

    ``||p - e_y|| * sqrt(||f||^2 + 1)``; without a bias the one is left out.
    """
    error: Tensor = logits.softmax(dim=1) - F.one_hot(labels, logits.shape[1])
    lengths: Tensor = (features.square().sum(dim=1) + float(has_bias)).sqrt()
    norms: Tensor = torch.linalg.vector_norm(error, dim=1) * lengths
    return norms


def _full_norms(network: Network, buffers: dict[str, Tensor], x: Tensor, y: Tensor, chunk: int = 16) -> Tensor:
    """Return the norm of each sample's gradient over all parameters, with the received BatchNorm statistics."""
    training = network.training
    network.eval()
    parameters = {n: p.detach() for n, p in network.named_parameters()}

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        outputs = torch.func.functional_call(network, (values, buffers), (image[None],))
        return F.cross_entropy(outputs.logits, label[None])

    def squared_norm(image: Tensor, label: Tensor) -> Tensor:
        gradients = torch.func.grad(loss)(parameters, image, label)
        return torch.stack([g.square().sum() for g in gradients.values()]).sum()

    norms: Tensor = torch.func.vmap(squared_norm, chunk_size=chunk)(x, y).sqrt()
    network.train(training)
    return norms
