r"""Re-Fed+ (Li et al., Re-Fed, CVPR 2024, and its successor): keep the samples that a personalised model finds hard.

Before a task's data are dropped, each client briefly trains a personalised informative model (PIM) between its own
data and the global model, and keeps the samples with the largest accumulated gradient norm.

Objective:
    $$
    \begin{aligned}
    \text{training:} \quad & L = \mathrm{CE}(z, y) \\
    \text{PIM:} \quad & v \leftarrow v - \eta \left( \nabla\,\mathrm{CE} + q\,(v - \theta) \right), \quad
    q = \frac{1 - \lambda}{2 \lambda} \\
    \text{score:} \quad & I(x) = \sum_p \frac{G_p(x)}{p}, \quad
    G_p(x) = \left\lVert \nabla\,\mathrm{CE}(z_v(x), y) \right\rVert
    \end{aligned}
    $$

    Training is over all seen classes, on the task's images and the exemplars. The personalised model $v$ starts at
    $\theta$, and $G_p$ is measured in its pass $p$. Kept are the samples with the largest $I(x)$, up to the
    client's quota, whatever their class.

Deviations:
    - Of Re-Fed+ neither code nor more than its outline was at hand: its rule is taken to be that of Re-Fed.
    - The PIM starts at the final global model and sees images without augmentation, in one order for all passes.
    - A batch of one image goes through BatchNorm's running statistics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.losses import pull_to_global
from fedfeat.algorithm.method import Method, Op, TaskEndStep
from fedfeat.algorithm.registry import base
from fedfeat.algorithm.sent import Sent, final_model
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.payload import Payload, number_of, tensor_of
from fedfeat.core.rng import rng_at
from fedfeat.core.settings import Settings, setting
from fedfeat.models import Network

PERSONAL = "personal_model"


class RefedSettings(Settings):
    """The personalised informative model (PIM)."""

    personal: float = setting(
        0.5,
        "share of local data against the global model in the PIM",
        origin="assumed; the value that re-implementations agree on",
        gt=0,
        lt=1,
        alias="lambda",
    )
    passes: int = setting(
        5, "passes of the PIM over the candidates", origin="assumed; 5 in two of three re-implementations", ge=1
    )
    lr: float = setting(0.01, "learning rate of the PIM, plain SGD", origin="assumed; from re-implementations", gt=0)
    start: Literal["global", "previous"] = setting(
        "global",
        "where the PIM starts: at the global model, or where the client's PIM of its previous task ended",
        origin="a choice: a client then keeps no model of its own",
    )
    norms: Literal["last_layer", "full"] = setting(
        "last_layer",
        "gradient norm of the classifier in closed form, or of all parameters",
        origin="a choice for speed; of the classifier's gradient there is a closed form",
    )
    scope: Literal["task", "all"] = setting(
        "task",
        "candidates: the finished task only, or the buffer too (which is then chosen anew)",
        origin="as the released code of FedCBDR and FEAT stores exemplars; the original keeps one buffer of fixed size",
    )


@base(
    "refed",
    RefedSettings,
    sends=(final_model("keep_informative"), Sent("down/keep_informative/quota", "how many images the client may keep")),
)
def refed(settings: RefedSettings) -> Method:
    """Re-Fed+: replay the samples with the largest gradients along a personalised model's path."""
    return Method("refed", replay=InformativeChoice(settings))


class InformativeChoice(TaskEndStep):
    """Purely local selection; the only thing sent is the final model."""

    def __init__(self, settings: RefedSettings) -> None:
        self.settings = settings

    def ops(self) -> dict[str, Op]:
        """Clients answer ``keep_informative``."""
        return {"keep_informative": self.keep}

    def keep(self, client: Client, request: Payload) -> Payload:
        """Client: score the candidates along the PIM's path and keep the highest."""
        quota = int(number_of(request, "quota"))
        everything = self.settings.scope == "all"
        candidates = self.candidates(client)
        if len(candidates) == 0:
            return {}
        scores = self.score(client, candidates, tensor_of(request, "weights"))
        if everything:
            quota *= client.task + 1
        best = scores.argsort(descending=True, stable=True)[:quota]
        client.keep(candidates[best], instead=everything)
        return {}

    def candidates(self, client: Client) -> Tensor:
        """Return what may be kept, in an order of its own: data sets that come class by class have mixed batches."""
        everything = self.settings.scope == "all"
        found = torch.cat([client.samples, client.exemplars]) if everything else client.samples
        # The order depends on the samples alone, not on how they lie.
        order = rng_at(client.seed, "informative-order", client.task, client.id).permutation(len(found))
        return found.sort().values[torch.from_numpy(order).to(found.device)]

    def score(self, client: Client, candidates: Tensor, global_weights: Tensor) -> Tensor:
        """Return the accumulated gradient norms ``sum_p G_p(x) / p`` of each candidate."""
        model, size = client.model, client.settings.batch
        model.load(global_weights)
        path = _Path(self.settings, client, candidates, global_weights)
        if self.settings.start == "previous":
            _go_on(client)
        positions = torch.arange(len(candidates), device=candidates.device)
        full = len(candidates) // size * size
        chosen = positions[:full][:size].clone()
        step: Callable[[], None] = functools.partial(path.step, chosen)
        if full and self.settings.norms == "last_layer":
            step = client.repeat(step, (model.vector, path.scores))
        for number in range(1, self.settings.passes + 1):
            path.number.fill_(number)
            for start in range(0, full, size):
                chosen.copy_(positions[start : start + size])
                step()
            if full < len(candidates):
                path.step(positions[full:])
        if self.settings.start == "previous":
            client.remember(PERSONAL, model.weights.clone())
        return path.scores

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: ask every client with a quota."""
        task_end.exchange.gather("keep_informative", task_end.model_and_quota())


def _go_on(client: Client) -> None:
    """Load the client's PIM of its previous task; classes that came since have the global model's rows."""
    if PERSONAL not in client.state:
        return
    kept, classes = tensor_of(client.state, PERSONAL), int(number_of(client.state, f"{PERSONAL}.classes"))
    earlier = client.model.widened(kept.to(client.device), classes, fill=math.nan)
    with torch.no_grad():
        client.model.weights.copy_(torch.where(earlier.isnan(), client.model.weights, earlier))


class _Path:
    """The path of a personalised model from the global one, and the scores that candidates gather along it."""

    def __init__(self, settings: RefedSettings, client: Client, candidates: Tensor, global_weights: Tensor) -> None:
        self.settings, self.client, self.candidates = settings, client, candidates
        self.anchor = global_weights[: client.model.num_trainable].to(client.model.vector)
        self.pull = pull_to_global(settings.personal)
        self.buffers = {name: buffer.clone() for name, buffer in client.network.named_buffers()}
        self.scores = torch.zeros(len(candidates), dtype=torch.float64, device=candidates.device)
        self.number = torch.ones((), dtype=torch.float64, device=candidates.device)  # of the pass at work

    def step(self, chosen: Tensor) -> None:
        """Score the candidates at some positions, and take one step on them."""
        model, network, batch = self.client.model, self.client.network, self.candidates[chosen]
        x, y = self.client.images.plain(batch), self.client.labels(batch)
        # Statistics of a single sample would be its own: take the running ones then.
        network.train(len(batch) > 1)
        outputs = network(x)
        loss = F.cross_entropy(outputs.logits, y)
        model.gather(torch.autograd.grad(loss, model.parameters, allow_unused=True))
        if self.settings.norms == "full":
            norms = _full_norms(network, self.buffers, x, y)
        else:
            inputs = network.head.multiplied(outputs.features).detach()
            norms = last_layer_norms(inputs, outputs.logits.detach(), y, network.head.has_bias)
        self.scores[chosen] += norms.double() / self.number
        with torch.no_grad():
            model.gradient.add_(model.weights - self.anchor, alpha=self.pull)
            model.weights.add_(model.gradient, alpha=-self.settings.lr)
            model.gradient.zero_()


def last_layer_norms(features: Tensor, logits: Tensor, labels: Tensor, has_bias: bool = True) -> Tensor:
    """Return the norm of each sample's cross-entropy gradient with respect to a linear classifier, in closed form.

    ``||p - e_y|| * sqrt(||f||^2 + 1)``; without a bias the one is left out.
    """
    shares = logits.softmax(dim=1)
    error = shares.scatter_add(1, labels[:, None], torch.full_like(shares[:, :1], -1.0))
    lengths: Tensor = (features.square().sum(dim=1) + float(has_bias)).sqrt()
    norms: Tensor = torch.linalg.vector_norm(error, dim=1) * lengths
    return norms


def _full_norms(network: Network, buffers: dict[str, Tensor], x: Tensor, y: Tensor, chunk: int = 16) -> Tensor:
    """Return the norm of each sample's gradient over all parameters, with the received BatchNorm statistics."""
    training = network.training
    network.eval()
    parameters = {n: p.detach() for n, p in network.trained_parameters()}

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        outputs = torch.func.functional_call(network, (values, buffers), (image[None],))
        return F.cross_entropy(outputs.logits, label[None])

    def squared_norm(image: Tensor, label: Tensor) -> Tensor:
        gradients = torch.func.grad(loss)(parameters, image, label)
        return torch.stack([g.square().sum() for g in gradients.values()]).sum()

    norms: Tensor = torch.func.vmap(squared_norm, chunk_size=chunk)(x, y).sqrt()
    network.train(training)
    return norms
