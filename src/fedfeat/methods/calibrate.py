r"""Calibrated correction: the strength of EGC, and an offset on new classes, chosen on held-out exemplars.

EGC measures its prior on exemplars the model has memorised, so it tends to push too hard. Here every client sets a
few samples aside for good; after the last round it adds up, for each pair of strengths on a grid, the global model's
cross-entropy on them. The server adds the tables up and takes the best pair. A linear head has no gate: there only the
offset is chosen. An offset may be negative, for a model that favours old classes. No correction is always among the
pairs, so nothing is applied that does not gain on the held-out samples.

Objective:
    Training as the base has it, without the held-out samples. With $z$ the cosines (ETF) or logits (linear head)
    and $z^{\mathrm{EGC}}$ the same after EGC, prediction uses

    $$
    z_c(\gamma, \delta) = z_c + \gamma\,(z^{\mathrm{EGC}}_c - z_c) - \begin{cases} 0 & c \text{ old} \\
    \delta & c \text{ new} \end{cases}
    $$

    Without EGC $\gamma = 0$. Where FedCBDR's loss divides logits by temperatures, both are divided first. The pair is
    chosen on held-out samples, with $\ell$ the mean cross-entropy of $s\,z(\gamma, \delta)$ on those of old or new
    classes:

    $$
    \min_{\gamma, \delta} \; \frac{C_{\mathrm{old}}\,\ell_{\mathrm{old}}(\gamma, \delta) +
    C_{\mathrm{new}}\,\ell_{\mathrm{new}}(\gamma, \delta)}{C}
    $$

    $s$ brings logits to the units of training: the scale of cosines or the length of the feature for an ETF, 1 for a
    linear head. With `rule = "accuracy"` the accuracy takes the place of $\ell$ and is maximised.

    Among equals the weakest is taken, by $\gamma + |\delta| / |\delta|_{\max}$: no correction, if it is one of them.
    With fewer than `least` held-out samples of old or of new classes nothing is chosen, and predictions are those of
    the method without `calibrate`.

Deviations:
    - This is not a published method. BiC (Wu et al., Large Scale Incremental Learning, CVPR 2019) fits a scale and an
      offset for new classes on held-out exemplars in one place. Here a grid takes the place of the fit, so that
      clients send nothing but sums, and the scale is that of EGC's gate.

Run:
    fedcbdr+feat+calibrate --set scenario.budget=100
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Method, Op, Prediction, TaskEndStep
from fedfeat.algorithm.registry import addon
from fedfeat.algorithm.scaled import ScaledLogits
from fedfeat.algorithm.sent import Sent, final_model
from fedfeat.algorithm.step import Known, Seen
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.errors import ConfigError
from fedfeat.core.payload import Payload, tensor_of
from fedfeat.core.settings import Settings, setting
from fedfeat.geometry.calibration import Rule, calibrated, choose, count_right, sum_losses
from fedfeat.methods.feat.correction import EnergyCorrection
from fedfeat.models import ETFHead, Network, Outputs

GAMMA, DELTA = "gamma", "delta"


class CalibrateSettings(Settings):
    """What is held out and which strengths are tried."""

    default_origin = "a choice of this project"

    held_out: float = setting(0.2, "share of each old class's exemplars that is set aside", gt=0, le=0.5)
    redraw: bool = setting(
        False,
        "hold other exemplars out in every task, which were trained on before; false holds the same ones out for good",
    )
    least: int = setting(
        2, "held-out samples of old classes, and of new ones, that a choice needs; with fewer nothing changes", ge=1
    )
    rule: Rule = setting(
        "likelihood",
        "what decides on the held-out samples: their cross-entropy in the units of training, or how many are right",
    )
    gammas: tuple[float, ...] = setting((0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "strengths of the gate to try", min_length=1)
    deltas: tuple[float, ...] = setting(
        (0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.13, 0.16, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0),
        "offsets to try on cosine logits",
        min_length=1,
    )
    linear_deltas: tuple[float, ...] = setting(
        tuple(i / 4 for i in range(81)), "offsets to try on the logits of a linear head", min_length=1
    )
    negative: bool = setting(True, "try the negative of every offset too, for a model that favours old classes")


class CalibratedPrediction(Prediction):
    """The prediction with the chosen strengths; the method's own correction until something was chosen."""

    name, label, gives_cosines = "calibrate", "calibrated", True

    def __init__(self, predict: Prediction | None) -> None:
        self.predict = predict

    def __call__(self, network: Network, outputs: Outputs, seen: Seen, known: Known) -> Tensor:
        """Return calibrated logits."""
        plain, corrected = _both(self.predict, network, outputs, seen, known)
        if GAMMA not in known.numbers:
            return corrected
        gamma, delta = known.numbers[GAMMA], known.numbers[DELTA]
        return calibrated(plain, corrected, num_old=seen.num_old, gamma=gamma, delta=delta)


@addon(
    "calibrate",
    CalibrateSettings,
    sends=(
        final_model("count_held_out"),
        Sent(
            "up/count_held_out/right",
            "how many held-out samples are right, old and new, per grid point",
            ("G", "D", 2),
            kind="count",
            summed=True,
            when=lambda settings: settings.rule == "accuracy",
            remark='with `rule = "accuracy"`, in place of `held_out_loss`',
        ),
        Sent(
            "up/count_held_out/held_out_loss",
            "the cross-entropy of held-out samples, added up over old and new, per grid point",
            ("G", "D", 2),
            low=0.0,
            summed=True,
            when=lambda settings: settings.rule == "likelihood",
        ),
        Sent(
            "up/count_held_out/held_out", "how many samples were held out, old and new", (2,), kind="count", summed=True
        ),
        Sent("down/count_held_out/*", "each number that the server keeps, such as EGC's priors"),
    ),
    prediction=CalibratedPrediction,
    examples=("fedcbdr+feat+calibrate", "fedcbdr+calibrate", "refed+feat+calibrate"),
)
def calibrate(method: Method, settings: CalibrateSettings) -> Method:
    """Choose the strength of the correction on held-out exemplars, from sums that clients send."""
    if method.replay is None:
        raise ConfigError(
            f"method: calibrate judges by held-out exemplars, and {method.name!r} keeps none; "
            "put it on a replay base such as fedcbdr+calibrate"
        )
    if not isinstance(method.predict, EnergyCorrection | ScaledLogits | None):
        raise ConfigError(
            f"method: calibrate tunes plain logits or EGC, and {method.name!r} predicts in another way; leave one out"
        )
    step = Calibration(settings, method.predict, method.has_etf_head)
    return replace(
        method,
        held_out=settings.held_out,
        redraws_held_out=settings.redraw,
        task_end=(*method.task_end, step),
        sizes={**method.sizes, "G": len(step.gammas), "D": len(step.deltas)},
        predict=CalibratedPrediction(method.predict),
        variants={**method.variants, **({"before calibration": method.predict} if method.predict else {})},
    )


class Calibration(TaskEndStep):
    """Chooses the two numbers at the end of every task; needed after the last one too."""

    after_last = True

    def __init__(self, settings: CalibrateSettings, predict: Prediction | None, has_etf_head: bool) -> None:
        self.predict = predict
        self.rule, self.least = settings.rule, settings.least
        self.table = "right" if self.rule == "accuracy" else "held_out_loss"
        self.gammas = _with_none(settings.gammas) if isinstance(predict, EnergyCorrection) else (0.0,)
        offsets = settings.deltas if has_etf_head else settings.linear_deltas
        self.deltas = _with_none([*(-delta for delta in offsets), *offsets] if settings.negative else offsets)
        self.where = "calibrate.deltas" if has_etf_head else "calibrate.linear_deltas"

    def ops(self) -> dict[str, Op]:
        """Clients answer ``count_held_out``."""
        return {"count_held_out": self.count_held_out}

    def count_held_out(self, client: Client, request: Payload) -> Payload:
        """Client: two sums (or counts) per grid point and two totals; no image, feature or label leaves."""
        held_out = client.held_out
        if len(held_out) == 0:
            return {}
        client.model.load(tensor_of(request, "weights"))
        known = Known({k: float(v) for k, v in request.items() if isinstance(v, int | float)}, {})
        seen = client.global_seen  # the correction is the server's, and so are its groups
        plain, corrected, unit = self._logits(client, held_out, seen, known)
        labels = client.labels(held_out)
        old = int((labels < seen.num_old).sum())
        totals = torch.tensor([old, len(labels) - old], dtype=torch.int32)
        grid = {"gammas": self.gammas, "deltas": self.deltas}
        if self.rule == "accuracy":
            table = count_right(plain, corrected, labels, num_old=seen.num_old, **grid)
        else:
            table = sum_losses(plain, corrected, labels, unit=unit, num_old=seen.num_old, **grid)
        return {self.table: table, "held_out": totals}

    @torch.no_grad()
    def _logits(self, client: Client, indices: Tensor, seen: Seen, known: Known) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits without and with the method's own correction, and what brings them to those of training."""
        network = client.network.eval()
        found = []
        for batch in torch.split(indices, client.settings.batch):
            outputs = network(client.images.plain(batch))
            found.append((*_both(self.predict, network, outputs, seen, known), _unit(network, outputs)))
        plain, corrected, unit = (torch.cat(parts) for parts in zip(*found, strict=True))
        return plain, corrected, unit

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: add up the tables and keep the best pair; with too few samples, the method's own prediction."""
        seen, progress = task_end.server.seen, task_end.server.progress
        progress.numbers.pop(GAMMA, None)
        progress.numbers.pop(DELTA, None)
        if seen.num_old == 0:
            return
        request: Payload = {"weights": task_end.weights, **progress.numbers}
        replies = task_end.exchange.gather("count_held_out", {k: dict(request) for k in sorted(task_end.quotas)})
        answers = [r for r in replies.values() if self.table in r]
        totals = torch.stack([torch.zeros(2), *(tensor_of(r, "held_out").cpu() for r in answers)]).sum(dim=0).int()
        old, new = totals.tolist()
        if min(old, new) < self.least:
            _say_nothing_was_chosen(old, new, self.least)
            return
        choice = choose(
            torch.stack([tensor_of(r, self.table).cpu().double() for r in answers]).sum(dim=0),
            (old, new),
            num_old=seen.num_old,
            num_new=seen.num_classes - seen.num_old,
            gammas=self.gammas,
            deltas=self.deltas,
            rule=self.rule,
            least=self.least,
        )
        assert choice is not None, "there are enough samples"
        progress.numbers[GAMMA], progress.numbers[DELTA] = choice
        self._say_if_others_may_be_better(choice[1])

    def _say_if_others_may_be_better(self, delta: float) -> None:
        if len(self.deltas) > 1 and delta != 0 and delta in (self.deltas[0], self.deltas[-1]):
            end, beyond = ("largest", "larger") if delta > 0 else ("smallest", "smaller")
            warnings.warn(
                f"calibrate: {delta:g} is the {end} offset that was tried, and the best; "
                f"{beyond} ones may do more: see {self.where}",
                stacklevel=3,
            )


def _with_none(strengths: Sequence[float]) -> tuple[float, ...]:
    """Return what is tried in order, zero always among it."""
    return tuple(sorted({0.0, *strengths}))


def _both(
    predict: Prediction | None, network: Network, outputs: Outputs, seen: Seen, known: Known
) -> tuple[Tensor, Tensor]:
    """Return logits without and with the method's own correction, in the same units; both divided if it divides."""
    if isinstance(network.head, ETFHead):
        plain = network.head.cosine(outputs.features.float())
    else:
        plain = outputs.logits.float()
    scaling = predict if isinstance(predict, ScaledLogits) else getattr(predict, "scaling", None)
    if scaling is not None:
        plain = scaling.divided(plain, seen.num_old)
    if isinstance(predict, EnergyCorrection):
        return plain, predict(network, outputs, seen, known)
    return plain, plain


def _unit(network: Network, outputs: Outputs) -> Tensor:
    """Return what each sample's logits are multiplied with in training [n]: 1 for those of a linear head."""
    if isinstance(network.head, ETFHead):
        lengths: Tensor = network.head.multiplied(outputs.features.float()).norm(dim=1)
        return lengths
    return torch.ones_like(outputs.logits[:, 0], dtype=torch.float32)


def _say_nothing_was_chosen(old: int, new: int, least: int) -> None:
    held = f"held out {old} samples of old classes and {new} of new ones, and {least} of each are needed"
    warnings.warn(
        f"calibrate: clients {held} (calibrate.least); the prediction stays as it is",
        stacklevel=3,
    )
