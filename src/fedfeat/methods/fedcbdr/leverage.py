"""FedCBDR's global data replay: exemplars drawn by leverage scores in the joint space of masked features.

1. ``masked_features``: a client sends ``P X Q``, rotated over samples (its own secret) and features (the clients').
2. The server takes one thin SVD over all clients and returns to each its block of left singular vectors.
3. ``leverage``: the client undoes its rotation, which gives exact leverage scores, and reports their sums.
4. ``keep_by_leverage``: the client draws as many exemplars as the server allots. Sample ids never leave it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import model_validator
from torch import Tensor

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.method import Op
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.errors import FedfeatError
from fedfeat.core.payload import Payload, number_of, tensor_of
from fedfeat.core.rng import rng_at
from fedfeat.core.settings import Settings, setting
from fedfeat.methods.exemplar_rules import even_shares
from fedfeat.methods.fedcbdr.masking import RowMask, row_mask, shared_rotation

SCORES = "leverage_scores"


class LeverageSettings(Settings):
    """How exemplars are drawn."""

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
    undecisive = frozenset({"mask_block"})  # a mask cancels in the scores

    @model_validator(mode="after")
    def _classes_are_filled_once(self) -> LeverageSettings:
        if self.mode == "class_quota" and self.replacement:
            raise ValueError("mode class_quota draws without replacement; leave replacement out or choose another mode")
        return self


class LeverageChoice:
    """Selection over the whole federation, without a sample leaving its client."""

    after_last = False

    def __init__(self, settings: LeverageSettings) -> None:
        self.settings = settings
        self.replacement = settings.replacement if settings.replacement is not None else settings.mode == "repo"

    def ops(self) -> dict[str, Op]:
        """Clients answer three questions."""
        return {
            "masked_features": self.masked_features,
            "leverage": self.leverage,
            "keep_by_leverage": self.keep,
        }

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Run the protocol above for one finished task."""
        asked = sorted(task_end.quotas)
        masked = {
            k: tensor_of(reply, "features")
            for k, reply in task_end.exchange("masked_features", {k: {"weights": task_end.weights} for k in asked})
            if "features" in reply
        }
        if not masked:
            return
        blocks = self._singular_blocks(masked)
        reports = task_end.exchange.gather("leverage", {k: {"vectors": block} for k, block in blocks.items()})
        if not reports:
            return
        # A client that dropped out after it sent its features keeps no scores, and has nothing to draw from.
        shares = self._allot(task_end, {k: len(f) for k, f in masked.items() if k in reports}, reports)
        task_end.exchange.gather("keep_by_leverage", {k: {"quota": share} for k, share in shares.items()})

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

    def _singular_blocks(self, masked: dict[int, Tensor]) -> dict[int, Tensor]:
        if self.settings.mode == "repo":
            return {k: left_singular_vectors(f).float() for k, f in masked.items()}
        stacked = left_singular_vectors(torch.cat(list(masked.values())))
        sizes = [len(f) for f in masked.values()]
        return dict(zip(masked, (b.float() for b in torch.split(stacked, sizes)), strict=True))

    def _allot(self, task_end: TaskEnd, sizes: dict[int, int], reports: dict[int, Payload]) -> dict[int, int | Tensor]:
        if self.settings.mode == "class_quota":
            return _allot_by_class(task_end, reports)
        if self.settings.mode == "global":
            masses = np.array([max(number_of(reports[k], "mass"), 0.0) for k in sizes])
            rng = rng_at(task_end.seed, "global-leverage", task_end.task)
            wanted = rng.multinomial(task_end.budget, masses / masses.sum())
        else:
            wanted = np.array([task_end.quotas[k] for k in sizes])
        if not self.replacement and task_end.shares_budget:
            wanted = pass_on(wanted, np.array(list(sizes.values())), task_end.budget)
        return {k: int(w) for k, w in zip(sizes, wanted, strict=True)}


def left_singular_vectors(features: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Return the thin left singular vectors of non-negligible singular values, in float64."""
    if not features.isfinite().all():
        raise FedfeatError(
            "replay: exemplars are drawn by the model's features, and these are not finite: training diverged; "
            "lower train.lr and start again"
        )
    basis, small = torch.linalg.qr(features.double())  # many rows, few columns: the rest is done on a small matrix
    left, values, _ = torch.linalg.svd(small, full_matrices=False)
    vectors: Tensor = basis @ left[:, values > tolerance * values.max().clamp(min=1e-300)]
    return vectors


def draw_by_score(scores: np.ndarray, count: int, rng: np.random.Generator, *, replacement: bool) -> np.ndarray:
    """Draw positions with probability proportional to the score; zero scores come last when all are needed."""
    if not replacement:
        count = min(count, len(scores))
    if count == 0 or len(scores) == 0:
        return np.zeros(0, dtype=np.int64)
    positive = np.maximum(scores, 0.0) + 1e-12
    return rng.choice(len(scores), size=count, replace=replacement, p=positive / positive.sum())


def pass_on(wanted: np.ndarray, available: np.ndarray, total: int) -> np.ndarray:
    """Cap each wish at what is available and hand the rest round, one by one, to those who have more."""
    given = np.minimum(wanted, available)
    rest = even_shares((available - given).tolist(), total - int(given.sum()))
    shares: np.ndarray = given + np.array(rest, dtype=given.dtype)
    return shares


def _allot_by_class(task_end: TaskEnd, reports: dict[int, Payload]) -> dict[int, int | Tensor]:
    """Give every class the same number of exemplars and split it over clients by their leverage in that class."""
    clients = list(reports)
    counts = np.stack([tensor_of(reports[k], "counts").cpu().numpy() for k in clients]).astype(np.int64)
    masses = np.stack([tensor_of(reports[k], "masses").cpu().numpy() for k in clients]).astype(np.float64)
    per_class = even_shares(counts.sum(axis=0).tolist(), task_end.budget)
    shares = np.zeros_like(counts)
    for label, quota in enumerate(per_class):
        ideal = masses[:, label] / max(masses[:, label].sum(), 1e-12) * quota
        floor = np.minimum(np.floor(ideal).astype(np.int64), counts[:, label])
        by_remainder = np.argsort(-(ideal - floor), kind="stable")
        room = (counts[:, label] - floor)[by_remainder]
        floor[by_remainder] += np.array(even_shares(room.tolist(), quota - int(floor.sum())), dtype=np.int64)
        shares[:, label] = floor
    return {k: torch.from_numpy(shares[row]).int() for row, k in enumerate(clients)}
