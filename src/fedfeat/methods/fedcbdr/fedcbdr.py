r"""FedCBDR (Qi et al., NeurIPS 2025): class-balanced data replay from a global view of masked features.

Clients send rotated features, the server finds leverage scores in their joint space, and exemplars are drawn by
them (global data replay). Training gives old and new logits and samples their own temperature and weight (TTS).

Objective:
    In task 1 $L = \mathrm{CE}(z, y)$. Afterwards, with
    $\hat{z} = [z_{\mathrm{old}} / \tau_{\mathrm{old}}, z_{\mathrm{new}} / \tau_{\mathrm{new}}]$,

    $$
    \begin{aligned}
    \text{tts = "code":} \quad & L = \frac{1}{B} \sum_x w_y\,\mathrm{CE}(\hat{z} / \tau_y, y) \\
    \text{tts = "paper":} \quad & L = w_{\mathrm{old}}
    \operatorname{mean}_{\mathrm{old}}\,\mathrm{CE}(\hat{z}, y) + w_{\mathrm{new}}
    \operatorname{mean}_{\mathrm{new}}\,\mathrm{CE}(\hat{z}, y)
    \end{aligned}
    $$

    where $\tau_y$ and $w_y$ are those of the sample's side, old or new. The class with the largest $\hat{z}$ is
    predicted (`scale_logits`); the accuracy without the division is recorded beside it. The score of sample $j$ is
    $\left\lVert U_{j \cdot} \right\rVert^2$, the squared norm of its row in the thin left singular vectors of all
    clients' features.

Deviations:
    - Clients undo their rotation before they take scores. The released code does not, and takes one decomposition per
      client, which amounts to uniform draws; that is mode `repo`.
    - The singular vectors are thin. With the square matrix of the paper's notation all scores would be equal.
    - The rotation over samples is a permutation and then a rotation within blocks of `mask_block` rows: linear in
      the number of samples, still orthogonal, so the scores stay exact.
    - A quota that a client cannot fill goes to others, one by one. The released code fails on a remainder.
    - Features are of images without augmentation, except in mode `repo`.
    - Modes `global` and `class_quota` are additions; the latter tells the server how many images each class has.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.losses import TTSForm, temperature_scaled_cross_entropy
from fedfeat.algorithm.method import Method, Op, TaskEndStep
from fedfeat.algorithm.registry import base
from fedfeat.algorithm.scaled import ScaledLogits
from fedfeat.algorithm.sent import Sent, final_model
from fedfeat.algorithm.step import LossTerm, Step
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.payload import Payload, number_of, tensor_of
from fedfeat.core.rng import rng_at
from fedfeat.core.settings import Settings, setting
from fedfeat.methods.fedcbdr.leverage import (
    RowMask,
    allot_by_class,
    draw_by_score,
    left_singular_vectors,
    pass_on,
    row_mask,
    shared_rotation,
)

SCORES = "leverage_scores"
BY_NEW_CLASS = "fedcbdr.mode = 'class_quota' shares the budget among new classes, the same for all clients and images"


class FedCBDRSettings(Settings):
    """Selection and loss of FedCBDR."""

    mode: Literal["paper", "repo", "global", "class_quota"] = setting(
        "paper",
        "paper: exact global scores, equal quota per client; repo: the released code, in effect uniform "
        "draws; global: one distribution over all clients; class_quota: equal quota per class",
        origin="paper, with the repairs named below",
    )
    replacement: bool | None = setting(
        None,
        "draw with replacement; default is yes in mode repo only, since duplicates waste memory",
        origin="a choice: without, since a duplicate wastes memory; paper and released code draw with",
    )
    mask_block: int = setting(256, "rows that are rotated together", origin="a choice, see the deviations", ge=1)
    tts: TTSForm = setting(
        "code", "form of the temperature-scaled loss: the released code's or the paper's", origin="released code"
    )
    tau_old: float = setting(0.9, "temperature of old logits", origin="paper", gt=0)
    tau_new: float = setting(1.1, "temperature of new logits", origin="paper", gt=0)
    weight_old: float = setting(1.1, "weight of samples of old classes", origin="paper", ge=0)
    weight_new: float = setting(0.9, "weight of samples of new classes", origin="paper", ge=0)
    scale_logits: bool = setting(
        True,
        "divide logits by the temperatures at test time too",
        origin="released code's switch, which brings CIFAR-10 to the published value; the paper does not say",
    )

    @model_validator(mode="after")
    def _classes_are_filled_once(self) -> FedCBDRSettings:
        if self.mode == "class_quota" and self.replacement:
            raise ValueError("mode class_quota draws without replacement; leave replacement out or choose another mode")
        return self


def _by_class(settings: FedCBDRSettings) -> bool:
    return settings.mode == "class_quota"


@base(
    "fedcbdr",
    FedCBDRSettings,
    sends=(
        final_model("masked_features"),
        Sent(
            "up/masked_features/features",
            "features of the finished task, rotated over samples and dimensions",
            ("n", "d"),
        ),
        Sent(
            "down/leverage/vectors",
            "the client's rows of the singular vectors, one column per rank",
            ("n", "d"),
            at_most=True,
        ),
        Sent(
            "up/leverage/mass",
            "sum of leverage scores",
            low=0,
            high="d",
            always=True,
            when=lambda settings: not _by_class(settings),
            remark="not in mode class_quota",
        ),
        Sent(
            "up/leverage/counts",
            "samples per new class",
            ("N",),
            kind="count",
            always=True,
            when=_by_class,
            remark="mode class_quota only",
        ),
        Sent(
            "up/leverage/masses",
            "leverage per new class",
            ("N",),
            low=0,
            high="d",
            always=True,
            when=_by_class,
            remark="mode class_quota only",
        ),
        Sent(
            "down/keep_by_leverage/quota",
            "how many to draw",
            remark="4 * N bytes in mode class_quota, one number per class",
        ),
    ),
)
def fedcbdr(settings: FedCBDRSettings) -> Method:
    """FedCBDR: exemplars by global leverage scores, temperature-scaled and re-weighted cross-entropy."""

    def tts(step: Step) -> Tensor:
        return temperature_scaled_cross_entropy(
            step.logits,
            step.labels,
            step.num_old,
            tau_old=settings.tau_old,
            tau_new=settings.tau_new,
            weight_old=settings.weight_old,
            weight_new=settings.weight_new,
            form=settings.tts,
        )

    predict = ScaledLogits(settings.tau_old, settings.tau_new) if settings.scale_logits else None
    return Method(
        "fedcbdr",
        loss=LossTerm("tts", tts),
        replay=LeverageChoice(settings),
        predict=predict,
        refuses=dict.fromkeys(("blurry", "lag"), BY_NEW_CLASS) if _by_class(settings) else {},
    )


class LeverageChoice(TaskEndStep):
    """Selection over the whole federation, without a sample leaving its client.

    1. ``masked_features``: a client sends ``P X Q``, rotated over samples (its own secret) and features (the clients').
    2. The server takes one thin SVD over all clients and returns to each its block of left singular vectors.
    3. ``leverage``: the client undoes its rotation, which gives exact leverage scores, and reports their sums.
    4. ``keep_by_leverage``: the client draws as many exemplars as the server allots. Sample ids never leave it.
    """

    def __init__(self, settings: FedCBDRSettings) -> None:
        self.settings = settings
        self.replacement = settings.replacement if settings.replacement is not None else settings.mode == "repo"

    def ops(self) -> dict[str, Op]:
        """Clients answer three questions."""
        return {"masked_features": self.masked_features, "leverage": self.leverage, "keep_by_leverage": self.keep}

    def masked_features(self, client: Client, request: Payload) -> Payload:
        """Client: features of the finished task under the final model, rotated twice."""
        if len(client.samples) == 0:
            return {}
        client.model.load(tensor_of(request, "weights"))
        augment = "selection" if self.settings.mode == "repo" else None
        features = torch.cat(list(client.features(client.samples, augment=augment))).double()
        rotation = shared_rotation(client.seed, client.task, features.shape[1], client.device)
        return {"features": (self._mask(client).apply(features) @ rotation).float()}

    def leverage(self, client: Client, request: Payload) -> Payload:
        """Client: undo the rotation, keep the scores, report their sum (and sums and counts by class if needed)."""
        vectors = tensor_of(request, "vectors").to(client.device).double()
        if self.settings.mode != "repo":
            vectors = self._mask(client).undo(vectors)
        scores = vectors.square().sum(dim=1).cpu()
        client.state[SCORES] = scores
        if self.settings.mode != "class_quota":
            return {"mass": float(scores.sum())}
        labels = client.labels(client.samples).cpu() - client.num_old
        new = client.num_classes - client.num_old
        return {
            "counts": torch.bincount(labels, minlength=new).int(),
            "masses": torch.bincount(labels, weights=scores, minlength=new).float(),
        }

    def keep(self, client: Client, request: Payload) -> Payload:
        """Client: draw the allotted number of exemplars, by class if the server allotted by class."""
        scores = client.state.pop(SCORES)
        assert isinstance(scores, Tensor)
        rng = rng_at(client.seed, "keep-by-leverage", client.task, client.id)
        quota = request["quota"]
        if not isinstance(quota, Tensor):
            chosen = draw_by_score(scores.numpy(), int(quota), rng, replacement=self.replacement)
            client.keep(client.samples[torch.from_numpy(chosen).to(client.device)])
            return {}
        labels = client.labels(client.samples).cpu() - client.num_old
        for label, share in enumerate(quota.tolist()):
            members = (labels == label).nonzero().flatten().numpy()
            chosen = members[draw_by_score(scores.numpy()[members], share, rng, replacement=False)]
            client.keep(client.samples[torch.from_numpy(chosen).to(client.device)])
        return {}

    def _mask(self, client: Client) -> RowMask:
        where, rows = (client.task, client.id), len(client.samples)
        seed = client.seed if client.secret is None else client.secret
        return row_mask(seed, *where, rows, block=self.settings.mask_block, device=client.device)

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Server: run the protocol above for one finished task."""
        replies = task_end.exchange("masked_features", task_end.final_model())
        masked = {k: tensor_of(reply, "features") for k, reply in replies if "features" in reply}
        if not masked:
            return
        blocks = self._singular_blocks(masked)
        reports = task_end.exchange.gather("leverage", {k: {"vectors": block} for k, block in blocks.items()})
        if not reports:
            return
        # A client that dropped out after it sent its features keeps no scores, and has nothing to draw from.
        shares = self._allot(task_end, {k: len(f) for k, f in masked.items() if k in reports}, reports)
        task_end.exchange.gather("keep_by_leverage", {k: {"quota": share} for k, share in shares.items()})

    def _singular_blocks(self, masked: dict[int, Tensor]) -> dict[int, Tensor]:
        if self.settings.mode == "repo":
            return {k: left_singular_vectors(f).float() for k, f in masked.items()}
        stacked = left_singular_vectors(torch.cat(list(masked.values())))
        sizes = [len(f) for f in masked.values()]
        return dict(zip(masked, (b.float() for b in torch.split(stacked, sizes)), strict=True))

    def _allot(self, task_end: TaskEnd, sizes: dict[int, int], reports: dict[int, Payload]) -> dict[int, int | Tensor]:
        if self.settings.mode == "class_quota":
            return allot_by_class(task_end.budget, reports)
        if self.settings.mode == "global":
            masses = np.array([max(number_of(reports[k], "mass"), 0.0) for k in sizes])
            masses = masses if masses.any() else np.ones(len(masses))
            rng = rng_at(task_end.seed, "global-leverage", task_end.task)
            wanted = rng.multinomial(task_end.budget, masses / masses.sum())
        else:
            wanted = np.array([task_end.quotas[k] for k in sizes])
        if not self.replacement and task_end.shares_budget:
            wanted = pass_on(wanted, np.array(list(sizes.values())), task_end.budget)
        return {k: int(w) for k, w in zip(sizes, wanted, strict=True)}
