"""What EGC's prior decides: the accuracy of a finished run with its prior multiplied, and the energies behind it.

The prior is measured on exemplars, which the model has trained on. Images of old classes that it has not seen have more
head energy, so the gate opens for them too. ``python benchmarks/egc_prior.py RUN`` prints how much that matters.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from fedfeat.experiment import Experiment
from fedfeat.geometry import group_energies
from fedfeat.methods.correction import PRIOR_HEAD, EnergyCorrection
from fedfeat.methods.method import Known
from fedfeat.models import ETFHead, Outputs
from fedfeat.trained import Trained, load_trained

FACTORS = (0.0, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run of FEAT, of two tasks or more")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    trained = load_trained(args.run, device=args.device)
    prior = trained.known.numbers.get(PRIOR_HEAD)
    if prior is None or "egc" not in trained.corrections:
        parser.error(f"{args.run}: no prior was measured there; take a run of FEAT with two tasks or more")
    outputs, labels = test_outputs(trained)
    energy, old = head_energy(trained, outputs), labels < trained.seen.num_old
    print(f"head energy: prior {prior:.4f}, old test images {energy[old].mean():.4f}, new {energy[~old].mean():.4f}")
    print(f"{'':>12s} {'all':>6s} {'old':>6s} {'new':>6s}")
    show("plain", outputs.logits, labels, old)
    for factor in FACTORS:
        show(f"prior x {factor:g}", corrected(trained, outputs, factor * prior), labels, old)


def test_outputs(trained: Trained) -> tuple[Outputs, Tensor]:
    """Return features and logits of all test images, and their labels in order of arrival."""
    images = Experiment(trained.config).engine.test_images
    parts = [trained.outputs(pixels.to(trained.device)) for pixels in torch.split(images.images, 256)]
    together = Outputs(torch.cat([p.features for p in parts]), torch.cat([p.logits for p in parts]))
    return together, images.labels.to(trained.device)


def head_energy(trained: Trained, outputs: Outputs) -> Tensor:
    """Return every image's energy in the space of new classes, as the run's prior measures it."""
    head, correct = trained.network.head, trained.correction("egc")
    assert isinstance(head, ETFHead)
    assert isinstance(correct, EnergyCorrection)
    settings = correct.settings
    return group_energies(
        head.cosine(outputs.features),
        num_old=trained.seen.num_old,
        rank_norm=settings.rank_norm,
        subspace=settings.subspace,
        num_prototypes=head.num_prototypes,
    ).head


def corrected(trained: Trained, outputs: Outputs, prior: float) -> Tensor:
    """Return logits corrected with another prior."""
    correct = trained.correction("egc")
    assert correct is not None
    known = Known({**trained.known.numbers, PRIOR_HEAD: prior}, trained.known.tensors)
    return correct(trained.network, outputs, trained.seen, known)


def show(name: str, logits: Tensor, labels: Tensor, old: Tensor) -> None:
    right = (logits.argmax(dim=1) == labels).float()
    print(f"{name:>12s} {100 * right.mean():6.2f} {100 * right[old].mean():6.2f} {100 * right[~old].mean():6.2f}")


if __name__ == "__main__":
    main()
