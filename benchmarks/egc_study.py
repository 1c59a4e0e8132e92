"""How strongly EGC should correct, looked at again with the model of a finished run.

    python benchmarks/egc_study.py RUN [--device cuda] [--out FILE.json]

- The prior is measured on exemplars, which the model has trained on; images of old classes that it has not seen have
  more head energy. So: the accuracy with the prior multiplied by some factors.
- The paper divides energies by the number of classes less one, and its formula adds the component of old classes where
  its abstract speaks of removing the one of new classes. So: the accuracy under other forms of the correction.
- `calibrate` chooses a strength and an offset on held-out samples. So, for a run of it: the accuracy that a choice from
  random parts of these samples leads to, and the best that any choice could do.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedfeat.algorithm.step import Known
from fedfeat.core.errors import FedfeatError
from fedfeat.core.files import write_json
from fedfeat.geometry import group_energies
from fedfeat.geometry.calibration import choose, count_right
from fedfeat.geometry.egc import RankNorm, group_rank
from fedfeat.methods.calibrate import CalibrateSettings, Calibration
from fedfeat.methods.feat.correction import PRIOR_HEAD, EnergyCorrection
from fedfeat.models import ETFHead, Outputs
from fedfeat.runs.experiment import Experiment
from fedfeat.runs.folder import RunFolder
from fedfeat.runs.trained import load_trained

FACTORS = (0.0, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
RANK_NORMS: tuple[RankNorm, ...] = ("minus_one", "true_rank", "none")
PARTS, REPEATS = (1.0, 0.5, 0.25, 0.1, 0.05), 200


class Samples(NamedTuple):
    """Some images as the model sees them."""

    features: Tensor
    cosines: Tensor
    labels: Tensor  # in order of arrival


class Study:
    """The last model of a run, its test images, and what its clients held out."""

    def __init__(self, run: Path, device: str) -> None:
        self.trained = load_trained(run, device=device)
        correction = self.trained.corrections.get("egc")
        if not isinstance(correction, EnergyCorrection) or PRIOR_HEAD not in self.trained.known.numbers:
            raise FedfeatError(f"{run}: it has no prior of EGC; take a run of FEAT with two tasks or more")
        self.correction, self.num_old = correction, self.trained.seen.num_old
        self.prior = self.trained.known.numbers[PRIOR_HEAD]
        self.engine = Experiment(self.trained.config).engine
        steps = (step for step in self.engine.method.task_end if isinstance(step, Calibration))
        self.grid = next(steps, Calibration(CalibrateSettings(), correction, has_etf_head=True))
        loaded = RunFolder.open(run).checkpoints.load()
        assert loaded is not None, "a model was read from it"
        self.engine.restore(loaded[1])
        self.engine.begin_task(self.trained.seen.task)
        self.test = self._samples(self.engine.test_images.images, self.engine.test_images.labels)

    def priors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield which test images are right without a correction, and with the prior multiplied."""
        yield "plain", self.test.cosines.argmax(dim=1) == self.test.labels
        for factor in FACTORS:
            logits = self._corrected(self.test, factor * self.prior)
            yield f"prior x {factor:g}", logits.argmax(dim=1) == self.test.labels

    def forms(self) -> Iterator[tuple[str, Tensor]]:
        """Yield which test images are right by what energies are divided by, and with and without the old part."""
        own, new = self.correction.settings, self.trained.seen.num_classes - self.num_old
        for rank_norm in RANK_NORMS:
            prior = self.prior * group_rank(new, own.rank_norm) / group_rank(new, rank_norm)
            for tail_boost in (True, False):
                form = own.model_copy(update={"rank_norm": rank_norm, "tail_boost": tail_boost})
                logits = self._corrected(self.test, prior, EnergyCorrection(form))
                name = f"{rank_norm}, {'removed and added' if tail_boost else 'removed alone'}"
                yield name, logits.argmax(dim=1) == self.test.labels

    def energies(self) -> dict[str, float]:
        """Return mean head energies of test images of old and of new classes."""
        head, settings = self._head(), self.correction.settings
        energy = group_energies(
            self.test.cosines,
            num_old=self.num_old,
            rank_norm=settings.rank_norm,
            subspace=settings.subspace,
            num_prototypes=head.num_prototypes,
        ).head
        old = self.test.labels < self.num_old
        return {"prior": self.prior, "old_test": float(energy[old].mean()), "new_test": float(energy[~old].mean())}

    def choices(self) -> Iterator[tuple[str, list[float]]]:
        """Yield accuracies that choices from parts of the held-out samples lead to, and the best of the grid."""
        reached = 100 * self._count(self.test).sum(dim=2) / len(self.test.labels)
        held, rng = self._held_out(), np.random.default_rng(0)
        old = (held.labels < self.num_old).cpu().numpy()
        for part in PARTS if 0 < old.sum() < len(old) else ():
            tries = []
            for _ in range(1 if part == 1 else REPEATS):
                sides = [_some(np.flatnonzero(side), part, rng) for side in (old, ~old)]
                tries.append(float(reached[self._chosen(held, sides)]))
            yield f"chosen on {len(sides[0])} old and {len(sides[1])} new", tries
        yield "best for the test images", [float(reached.max())]

    def _chosen(self, held: Samples, sides: list[np.ndarray]) -> tuple[int, int]:
        """Return the grid point that these of the held-out samples choose."""
        some = torch.from_numpy(np.concatenate(sides)).to(held.labels.device)
        choice = choose(
            self._count(Samples(*(values[some] for values in held))),
            (len(sides[0]), len(sides[1])),
            num_old=self.num_old,
            num_new=self.trained.seen.num_classes - self.num_old,
            gammas=self.grid.gammas,
            deltas=self.grid.deltas,
        )
        assert choice is not None, "there are samples of both sides"
        return self.grid.gammas.index(choice.gamma), self.grid.deltas.index(choice.delta)

    def _count(self, samples: Samples) -> Tensor:
        corrected = self._corrected(samples, self.prior)
        grid = {"gammas": self.grid.gammas, "deltas": self.grid.deltas}
        return count_right(samples.cosines, corrected, samples.labels, num_old=self.num_old, **grid)

    def _held_out(self) -> Samples:
        clients = [self.engine.client(k) for k in range(self.trained.config.scenario.clients)]
        indices = torch.cat([client.held_out for client in clients])
        return self._samples(self.engine.train_images.images[indices], self.engine.train_images.labels[indices])

    def _samples(self, pixels: Tensor, labels: Tensor) -> Samples:
        parts = [self.trained.outputs(p.to(self.trained.device)).features for p in torch.split(pixels, 256)]
        features = torch.cat(parts) if len(pixels) else torch.empty(0, self._head().dim, device=self.trained.device)
        return Samples(features, self._head().cosine(features), labels.to(self.trained.device))

    def _corrected(self, samples: Samples, prior: float, form: EnergyCorrection | None = None) -> Tensor:
        trained, correct = self.trained, form or self.correction
        known = Known({**trained.known.numbers, PRIOR_HEAD: prior}, trained.known.tensors)
        return correct(trained.network, Outputs(samples.features, samples.cosines), trained.seen, known)

    def _head(self) -> ETFHead:
        assert isinstance(self.trained.network.head, ETFHead)
        return self.trained.network.head


def _some(members: np.ndarray, part: float, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(members, max(1, int(len(members) * part)), replace=False)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run of FEAT, of two tasks or more")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the figures there, too")
    args = parser.parse_args()
    try:
        study = Study(args.run, args.device)
    except FedfeatError as error:
        parser.error(str(error))
    found: dict[str, Any] = {"method": study.trained.method.name, "head_energy": study.energies()}
    print("head energy: " + ", ".join(f"{name} {value:.4f}" for name, value in found["head_energy"].items()))
    old = study.test.labels < study.num_old
    print(f"{'':>30s} {'all':>6s} {'old':>6s} {'new':>6s}")
    for key, looked_at in (("priors", study.priors()), ("forms", study.forms())):
        for name, right in looked_at:
            shares = {part: 100 * float(right[of].float().mean()) for part, of in _parts(old)}
            found.setdefault(key, {})[name] = shares
            print(f"{name:>30s} " + " ".join(f"{share:6.2f}" for share in shares.values()))
    for name, reached in study.choices():
        spread = statistics.stdev(reached) if len(reached) > 1 else 0.0
        found.setdefault("choices", {})[name] = {"mean": statistics.fmean(reached), "std": spread}
        print(f"{name}: {statistics.fmean(reached):.2f}" + (f" ± {spread:.2f}" if len(reached) > 1 else ""))
    if args.out:
        write_json(args.out, found)


def _parts(old: Tensor) -> tuple[tuple[str, Tensor], ...]:
    return ("all", torch.ones_like(old)), ("old", old), ("new", ~old)


if __name__ == "__main__":
    main()
