"""FEAT (Qi et al., CVPR 2026): exemplars used by geometry, on top of any replay rule.

A simplex ETF shared by all clients is the classifier, GSA aligns the features of a batch with its angles, and EGC
takes the pull of current classes out of a prediction. ``fedcbdr+feat`` is the paper's FEAT_F, ``refed+feat`` FEAT_R;
``etf``, ``gsa`` and ``egc`` are its parts for ablations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedfeat.algorithm.method import EnergyMeasure, Method, linear_head
from fedfeat.algorithm.registry import addon
from fedfeat.algorithm.scaled import scaling_of
from fedfeat.algorithm.sent import Sent
from fedfeat.algorithm.step import Fusable, LossTerm, Step
from fedfeat.core.errors import ConfigError
from fedfeat.core.rng import int_at
from fedfeat.geometry import gsa_loss
from fedfeat.methods.feat.correction import PRIOR_HEAD, PRIOR_TAIL, EnergyCorrection, EnergyPrior
from fedfeat.methods.feat.settings import FeatSettings
from fedfeat.models import ETFHead

ONE_GROUPING = "feat.egc.prior_source = 'online' measures on training steps, whose old classes are each client's own"
SENDS = tuple(
    replace(sent, when=lambda settings: settings.egc.enabled, remark="from task 2 on", from_task=2, summed=True)
    for sent in (
        Sent("up/train/prior_head", "mean head energy of the client's exemplars", low=0, high=1, by="num_tail"),
        Sent("up/train/prior_tail", "mean tail energy of the client's exemplars", low=0, high=1, by="num_tail"),
        Sent("up/train/num_tail", "number of exemplars behind the two", kind="count"),
    )
)


@addon(
    "etf",
    FeatSettings,
    table="feat",
    reads=("keep_tts", "feature_head", "logits", "logit_scale", "etf.*"),
    examples=("fedcbdr+etf",),
)
def etf(method: Method, settings: FeatSettings) -> Method:
    r"""The fixed simplex-ETF classifier in place of the linear one.

    The classifier's vectors are those of a simplex equiangular tight frame: equal length, equal angles. Nobody trains
    or sends them; server and clients build the same one from a seed.

    Objective:
        $$
        L = \mathrm{CE}(z, y), \qquad z_c = \begin{cases} \left\langle f, w_c \right\rangle & \text{logits = "raw"} \\
        s\,\cos(f, w_c) & \text{logits = "cosine"} \end{cases}
        $$

        $s$ is `logit_scale`. The class vectors $w_c$ are the columns of

        $$
        W = \sqrt{\frac{C}{C - 1}}\; U \left( I_C - \frac{1}{C} \mathbf{1} \mathbf{1}^{\top} \right), \qquad
        \cos(w_a, w_b) = -\frac{1}{C - 1} \quad (a \ne b)
        $$

        with orthonormal columns $U$. This loss takes the place of a replay base's own unless `keep_tts`; a base without
        exemplars keeps its softmax over new classes.

    Deviations:
        - Frames of one seed are nested: when classes arrive, old prototypes turn as little as the new angles allow.
        - The random basis has no preferred direction: normal draws, signs fixed, in double precision.
        - A feature with fewer dimensions than classes is refused.
        - The backbone ends in a ReLU, as in the released program. So no feature is negative, and its cosine with a
          class vector of the random basis is at most about 0.7. `model.features = "signed"` leaves that ReLU out.
    """

    if method.head is not linear_head or method.corrects:
        raise ConfigError(
            f"method: etf takes the place of the linear classifier, and a part before it in {method.name!r} already "
            "did or predicts in its own way; leave one of the two out"
        )

    def head(dim: int, seed: int, num_classes: int) -> ETFHead:
        etf = settings.etf
        if etf.max_classes is not None and etf.max_classes < num_classes:
            raise ConfigError(
                f"feat.etf.max_classes: {etf.max_classes} prototypes are too few for {num_classes} classes; "
                "raise it, or leave it out for as many as there are"
            )
        return ETFHead(
            dim,
            seed=seed if etf.seed is None else etf.seed,
            growth=etf.growth,
            basis=etf.basis,
            logits=settings.logits,
            scale=settings.logit_scale,
            feature_layer=settings.feature_head,
            max_classes=etf.max_classes or num_classes,
        )

    # A replay base's own loss, and what it predicts with, give way to plain cross-entropy; exemplar-free bases keep
    # their masked one.
    if not (settings.keep_tts or method.replay is None or method.balanced):
        method = replace(method, loss=Method.loss, predict=None)
    return replace(method, head=head, has_etf_head=True)


@addon("gsa", FeatSettings, table="feat", reads=("gsa.*",), examples=("fedcbdr+etf+gsa",))
def gsa(method: Method, settings: FeatSettings) -> Method:
    r"""Geometric structure alignment: features of a batch lie to each other as their prototypes do.

    Geometric structure alignment: the features of a batch should have the angles to each other that the class vectors
    of their labels have. Needs `etf`.

    Objective:
        $$
        L = L_{\mathrm{base}} + \lambda\,L_{\mathrm{GSA}}, \qquad
        L_{\mathrm{GSA}} = \frac{1}{|\mathcal{C}_B|} \sum_{c \in \mathcal{C}_B} \frac{1}{n_c} \sum_{a :\, y_a = c}
        \operatorname{KL}\left( P^F_a \parallel P^P_a \right)
        $$

        from task `from_task` on, with `kl = "FP"`. $\mathcal{C}_B$ are the classes of the batch, $n_c$ their samples,
        and

        $$
        P^F_{ab} = \operatorname{softmax}_b \frac{\cos(f_a, f_b)}{\tau}, \qquad
        P^P_{ab} = \operatorname{softmax}_b \frac{\cos(w_{y_a}, w_{y_b})}{\tau} .
        $$

    Deviations:
        - Target angles follow from the labels alone. The released code picks them from the classifier's matrix along
          the wrong axis, it seems, which gives angles of random vectors; `gsa.target = "random"` is such a control.
    """
    _demand_etf(method, "gsa")
    if any(term.name == "gsa" for term in method.terms):
        raise ConfigError(f"method: {method.name!r} already has gsa; name it once (feat includes it)")
    gsa = settings.gsa

    options: dict[str, Any] = {
        "temperature": gsa.tau,
        "kl": gsa.kl,
        "include_self": gsa.include_self,
        "class_balanced": gsa.class_balanced,
    }

    def aligned(step: Step) -> Tensor:
        cosines = _random_cosines(step) if gsa.target == "random" else None
        return gsa_loss(step.features, step.labels, step.num_prototypes, prototype_cosines=cosines, **options)

    # Engines may have kernels of their own for the pure function.
    fused = None if gsa.target == "random" else Fusable(gsa_loss, options)
    return replace(method, terms=(*method.terms, LossTerm("gsa", aligned, gsa.weight, gsa.from_task, fused)))


@addon(
    "egc",
    FeatSettings,
    table="feat",
    reads=("egc.*",),
    sends=SENDS,
    prediction=EnergyCorrection,
    examples=("fedcbdr+etf+egc",),
)
def egc(method: Method, settings: FeatSettings) -> Method:
    r"""Energy-based geometric correction at inference, with a prior that clients measure on their exemplars.

    Energy-based geometric correction: a prediction is cleared of the part of its energy in the span of the current
    classes that goes beyond what exemplars of old classes show. Needs `etf` and exemplars.

    Objective:
        $$
        \begin{aligned}
        e_G(x) &= \frac{\left\lVert P_G x \right\rVert^2}{\max(n_G - 1, 1)} & & (G = H, T) \\
        g(x) &= \max\left( 0, \frac{e_H(x) - \pi_H}{e_H(x) + e_T(x) + \epsilon} \right) \\
        \tilde{x} &= x - g\,P_H x + g\,P_T x
        \end{aligned}
        $$

        $x$ is a feature of norm 1, and $P_G$ the projector on the span of the $n_G$ head ($H$) or tail ($T$)
        prototypes. The prior $\pi_H$ is the mean head energy of exemplars: a moving average over batches, then a mean
        over clients by their exemplars. The class with the largest $\left\langle \tilde{x}, w_c \right\rangle$ is
        predicted.

    Deviations:
        - One class in a group divides by 1, in the prior and in the prediction; the published formula divides by zero.
        - The correction is computed from cosines in closed form, without a projector of features by features.
        - The tail prior is measured and sent, as published, and nothing reads it.
        - Clients also send how many exemplars their priors rest on, which the published weighting needs.
    """
    _demand_etf(method, "egc")
    if not settings.egc.enabled:
        return method
    if method.balanced:
        raise ConfigError(
            f"method: egc takes out an imbalance that balanced in {method.name!r} does not let arise; leave one of the "
            "two out, as in fedcbdr+etf+balanced"
        )
    if method.corrects:
        raise ConfigError(f"method: {method.name!r} already corrects its predictions; name egc once (feat includes it)")
    if method.replay is None:
        raise ConfigError(
            "method: egc measures its prior on exemplars, and this base keeps none; "
            "put it on a replay base such as fedcbdr+feat"
        )
    online = {"lag": ONE_GROUPING} if settings.egc.prior_source == "online" else {}
    return replace(
        method,
        refuses={**method.refuses, **online},
        statistics=(*method.statistics, EnergyPrior(settings.egc)),
        encodes_exemplars=settings.egc.prior_source == "post_pass" and settings.egc.prior_transform == "test",
        predict=EnergyCorrection(settings.egc, scaling_of(method)),
        energies=EnergyMeasure(settings.egc.subspace, settings.egc.rank_norm, (PRIOR_HEAD, PRIOR_TAIL)),
    )


@addon(
    "feat",
    FeatSettings,
    table="feat",
    sends=SENDS,
    prediction=EnergyCorrection,
    examples=("fedcbdr+feat", "refed+feat", "herding+feat"),
)
def feat(method: Method, settings: FeatSettings) -> Method:
    r"""FEAT: the ETF classifier, the GSA loss and the EGC correction together.

    Objective:
        $$
        L = \begin{cases} \mathrm{CE}(z, y) & \text{in task 1} \\
        \mathrm{CE}(z, y) + \lambda\,L_{\mathrm{GSA}} & \text{afterwards} \end{cases}
        $$

        on the task's images and the exemplars, with $z$ the inner products with the ETF. EGC corrects predictions. The
        pages of `etf`, `gsa` and `egc` define $z$, $L_{\mathrm{GSA}}$ and the correction.

    Deviations:
        - Replayed images are augmented like all others unless `train.paste` says otherwise. The released code pastes
          half of them, shrunk, on a recoloured copy of themselves.
        - The model is that of the last round unless `train.model_selection` says otherwise; the released code restores
          the round of lowest training loss for FEAT alone.
        - Further ones are on the pages of `etf`, `gsa` and `egc`.
    """
    return egc(gsa(etf(method, settings), settings), settings)


def _demand_etf(method: Method, part: str) -> None:
    if not method.has_etf_head:
        raise ConfigError(
            f"method: {part} needs the ETF head, which is missing here; write base+etf+{part}, or base+feat for all"
        )


def _random_cosines(step: Step) -> Tensor:
    """Class-consistent but meaningless angles, spread as those of random vectors in as many dimensions as classes."""
    generator = torch.Generator().manual_seed(int_at(step.num_classes, "gsa-random-target"))
    vectors = F.normalize(torch.randn(step.num_classes, step.num_classes, generator=generator), dim=1)
    return (vectors @ vectors.T).to(step.features.device)
