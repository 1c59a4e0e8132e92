"""Confusion tables of a model on the samples somebody holds; tables of several holders add up."""

from __future__ import annotations

import torch
from torch import Tensor

from fedfeat.algorithm.method import Method
from fedfeat.algorithm.step import Known, Seen
from fedfeat.algorithm.tables import Tables
from fedfeat.data.augment import DeviceImages
from fedfeat.federation.energies import EnergyMeter
from fedfeat.models import Network
from fedfeat.models.network import Outputs

AT_ONCE = 32  # batches that are corrected and counted together, in many small steps


@torch.no_grad()
def count(
    network: Network, images: DeviceImages, seen: Seen, method: Method, known: Known, *, batch: int = 512
) -> Tables:
    """Return the confusion tables on all test images of the classes seen so far."""
    network.eval()
    predictions = [method.predict, *method.variants.values()]
    tables = torch.zeros(1 + len(predictions), seen.num_classes**2, dtype=torch.long, device=images.device)
    meter = EnergyMeter.of(network, method, seen, known)
    indices = (images.labels < seen.num_classes).nonzero().flatten()
    for chosen in torch.split(indices, AT_ONCE * batch) if len(indices) else ():
        labels = images.labels[chosen]
        parts = [network(images.plain(part)) for part in torch.split(chosen, batch)]
        outputs = Outputs(*(torch.cat(part) for part in zip(*parts, strict=True)))
        if meter is not None:
            meter.add(outputs.features, labels)
        logits = [outputs.logits]
        logits += [outputs.logits if p is None else p(network, outputs, seen, known) for p in predictions]
        for table, scores in zip(tables, logits, strict=True):
            table += _pairs(labels, scores.argmax(dim=1), seen.num_classes)
    plain, corrected, *others = tables.view(-1, seen.num_classes, seen.num_classes).cpu().numpy()
    energies = meter.read() if meter is not None else None
    return Tables(plain, corrected, dict(zip(method.variants, others, strict=True)), energies)


def _pairs(labels: Tensor, predicted: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(labels * num_classes + predicted, minlength=num_classes**2)
