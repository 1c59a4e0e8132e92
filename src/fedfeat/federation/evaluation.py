"""Evaluation is counting: confusion tables of a model on the test images somebody holds; tables of several add up."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.engine import Engine
from fedfeat.algorithm.method import Method, Op
from fedfeat.algorithm.sent import Sent
from fedfeat.algorithm.step import Known, Seen
from fedfeat.algorithm.tables import SAMPLES, SPANS, EnergyCounts, Tables
from fedfeat.core.payload import Payload, number_of, tensor_of
from fedfeat.data.augment import DeviceImages
from fedfeat.federation.exchange import Exchange
from fedfeat.geometry.egc import group_energies, group_rank
from fedfeat.models import ETFHead, Network, Outputs

MOST_VALUES = 2**23  # of the images that are evaluated at once
BINS = 100  # of the histograms of energies
AT_ONCE = 32  # batches that are corrected and counted together, in many small steps
EVALUATE = "evaluate"
TABLES, ENERGIES = "tables", "energies"
NUMBER, TENSOR = "number.", "tensor."  # prefixes of what predictions use besides the model
# What clients that own their data send besides: of their test part, and of what they hold when they join.
SENDS = {
    TABLES: Sent(
        f"up/{EVALUATE}/{TABLES}",
        "right and wrong predictions on the client's own test part, by true and predicted class",
        ("predictions", "C", "C"),
        kind="count",
        item=8,
        summed=True,
    ),
    ENERGIES: Sent(
        f"up/{EVALUATE}/{ENERGIES}",
        "histograms of the energies of its test features, with an ETF head",
        (len(SPANS), len(SAMPLES), BINS),
        kind="count",
        item=8,
        summed=True,
    ),
}
HELD = {
    "classes": Sent("up/hello/classes", "names of the classes that the client holds", shape=None, often="run"),
    "exemplars": Sent("up/hello/exemplars", "how many exemplars it keeps", kind="count", often="run"),
}


@torch.no_grad()
def count(
    network: Network,
    images: DeviceImages,
    seen: Seen,
    method: Method,
    known: Known,
    *,
    batch: int = 512,
    domains: Tensor | None = None,
) -> Tables:
    """Return the confusion tables on all test images of the classes seen so far; of large ones, fewer at once.

    :param domains: of each image, where tasks bring domains: the tables then have rows for every class of domain 0,
        of domain 1, and so on, up to that of the task.
    """
    network.eval()
    batch = max(min(batch, MOST_VALUES // math.prod(images.images.shape[1:])), 1)
    predictions = [method.predict, *method.variants.values()]
    rows = images.labels if domains is None else domains * seen.num_classes + images.labels
    shape = seen.num_classes * (1 if domains is None else seen.task + 1), seen.num_classes
    tables = torch.zeros(1 + len(predictions), math.prod(shape), dtype=torch.long, device=images.device)
    meter = EnergyMeter.of(network, method, seen, known)
    indices = (rows < shape[0]).nonzero().flatten()
    for chosen in torch.split(indices, AT_ONCE * batch) if len(indices) else ():
        labels = images.labels[chosen]
        batches = [network(images.plain(some)) for some in torch.split(chosen, batch)]
        outputs = Outputs(*(torch.cat(values) for values in zip(*batches, strict=True)))
        if meter is not None:
            meter.add(outputs.features, labels)
        logits = [outputs.logits]
        logits += [outputs.logits if p is None else p(network, outputs, seen, known) for p in predictions]
        for table, scores in zip(tables, logits, strict=True):
            table += torch.bincount(rows[chosen] * shape[1] + scores.argmax(dim=1), minlength=math.prod(shape))
    plain, corrected, *others = tables.view(-1, *shape).cpu().numpy()
    energies = meter.read() if meter is not None else None
    return Tables(plain, corrected, dict(zip(method.variants, others, strict=True)), energies)


def gather_tables(exchange: Exchange, clients: Iterable[int], engine: Engine, weights: Tensor, known: Known) -> Tables:
    """Ask clients to evaluate a model and add up what they count; one that drops out is left out."""
    method, seen = engine.method, engine.seen
    tables = torch.zeros(2 + len(method.variants), seen.num_classes, seen.num_classes, dtype=torch.long)
    meter = EnergyMeter.of(engine.network, method, seen, known)
    request = _request(engine, weights, known, len(tables))
    for _, reply in exchange(EVALUATE, {int(k): dict(request) for k in clients}):
        tables += tensor_of(reply, TABLES).cpu()
        if meter is not None:
            meter.counts += tensor_of(reply, ENERGIES).to(meter.counts).view_as(meter.counts)
    plain, corrected, *others = tables.numpy()
    energies = meter.read() if meter is not None else None
    return Tables(plain, corrected, dict(zip(method.variants, others, strict=True)), energies)


def evaluation_on(engine: Engine) -> Op:
    """Return the operation by which a client evaluates a model on the test images that its engine holds."""

    def evaluate(client: Client, request: Payload) -> Payload:
        known = Known(
            {k.removeprefix(NUMBER): number_of(request, k) for k in request if k.startswith(NUMBER)},
            {k.removeprefix(TENSOR): tensor_of(request, k) for k in request if k.startswith(TENSOR)},
        )
        counted = engine.evaluate(tensor_of(request, "weights"), known)
        stacked = np.stack([counted.plain, counted.corrected, *counted.variants.values()])
        reply: Payload = {TABLES: torch.from_numpy(stacked)}
        if counted.energies is not None:
            reply[ENERGIES] = torch.from_numpy(counted.energies.counts)
        return reply

    return evaluate


def fault_of_tables(request: Payload, reply: Payload) -> str | None:
    """Return what is wrong with a client's tables; None if they can be added to others."""
    tables, energies, size = reply.get(TABLES), reply.get(ENERGIES), int(number_of(request, "classes"))
    expected = (int(number_of(request, "predictions")), size, size)
    if not isinstance(tables, Tensor) or tables.dtype != torch.long or tuple(tables.shape) != expected:
        return f"{TABLES}: expected whole numbers of shape {list(expected)}"
    if bool(request["energies"]) != isinstance(energies, Tensor):
        return f"{ENERGIES}: {'missing' if request['energies'] else 'not asked for'}"
    return None


def _request(engine: Engine, weights: Tensor, known: Known, predictions: int) -> Payload:
    method, seen = engine.method, engine.seen
    request: Payload = {"weights": weights, "predictions": predictions, "classes": seen.num_classes}
    request["energies"] = int(method.has_etf_head and seen.num_old > 0)
    if method.predict is not None or method.variants:
        request |= {NUMBER + name: value for name, value in known.numbers.items()}
        request |= {TENSOR + name: value for name, value in known.tensors.items()}
    return request


class EnergyMeter:
    """Adds up the energies of batches of test features on the device; read once at the end."""

    def __init__(self, network: Network, method: Method, seen: Seen, known: Known) -> None:
        assert isinstance(network.head, ETFHead), "energies are those of an ETF's prototypes"
        self.head, self.seen, self.known = network.head, seen, known
        self.measure = method.energies
        device = network.head.prototypes.device
        self.counts = torch.zeros(len(SPANS), len(SAMPLES) * BINS, dtype=torch.long, device=device)

    @classmethod
    def of(cls, network: Network, method: Method, seen: Seen, known: Known) -> EnergyMeter | None:
        """Return a meter where there is something to measure: a fixed ETF, and old classes besides new ones."""
        return cls(network, method, seen, known) if method.has_etf_head and seen.num_old > 0 else None

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Take in one batch."""
        energies = group_energies(
            self.head.cosine(features.float()),
            num_old=self.seen.num_old,
            rank_norm="none",
            subspace=self.measure.subspace,
            num_prototypes=self.head.num_prototypes,
        )
        group = (labels >= self.seen.num_old).long()
        for row, shares in zip(self.counts, energies, strict=True):
            bins = (shares * BINS).long().clamp(0, BINS - 1)
            row += torch.bincount(group * BINS + bins, minlength=len(SAMPLES) * BINS)

    def read(self) -> EnergyCounts:
        """Return the histograms, with the priors turned from energies per rank into shares."""
        counts = self.counts.view(len(SPANS), len(SAMPLES), BINS).cpu().numpy()
        return EnergyCounts(counts, self._priors())

    def _priors(self) -> dict[str, float]:
        names, numbers = self.measure.priors, self.known.numbers
        if names is None or names[0] not in numbers:
            return {}
        sizes = self.seen.num_classes - self.seen.num_old, self.seen.num_old
        ranks = (group_rank(size, self.measure.rank_norm) for size in sizes)
        return {span: numbers[name] * rank for span, name, rank in zip(SPANS, names, ranks, strict=True)}
