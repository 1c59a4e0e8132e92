"""A client: its samples, its state, and the resident model it borrows while it takes part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedfeat.algorithm.held_out import Shuffle, by_place, hold_out
from fedfeat.algorithm.settings import PrivacySettings, TrainSettings
from fedfeat.algorithm.step import LossTerm, Repeat, Seen, as_it_is
from fedfeat.core.payload import State, number_of, tensor_of
from fedfeat.core.rng import rng_at
from fedfeat.data.augment import DeviceImages, plan_epoch
from fedfeat.data.paste import plan_pastes
from fedfeat.models import FlatModel, Network

EXEMPLARS = "exemplars"
IndexSets = dict[str, tuple[object, Tensor]]  # by name: the buffer that a set was worked out from, and the set


@dataclass
class Client:
    """One client in one task; cheap to make, since everything large is shared or lives in ``state``."""

    id: int
    task: int
    round: int
    num_old: int  # classes that are old to this client
    num_classes: int  # of the model
    global_seen: Seen  # where the server stands, whose old classes are more than those of a client that lags
    samples: Tensor  # indices of this task's data
    state: State
    model: FlatModel
    images: DeviceImages
    seed: int
    settings: TrainSettings
    privacy: PrivacySettings
    loss: LossTerm  # the method's classification loss
    class_names: tuple[str, ...]  # of the classes seen so far, in order of arrival
    shared: Mapping[str, Tensor]  # what the server made for all clients, delivered once
    encode: Callable[[Tensor], Tensor] | None  # a faster way from sample indices to features, if the engine has one
    frozen: Callable[[str, Tensor, int], Network]  # (name, vector, task it belongs to) -> network in evaluation mode
    batch: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))  # indices of the step at work
    repeat: Repeat = as_it_is  # makes work on fixed tensors cheaper to repeat, if the engine knows how
    held_out_share: float = 0.0  # of exemplars that are not trained on during a task
    redraws_held_out: bool = True  # other exemplars in every task; otherwise the same for good
    secret: int | None = None  # a number that nobody else knows; none in a simulation, where draws can be repeated
    sets: IndexSets = field(default_factory=dict)  # what was worked out for this client in this task

    @property
    def device(self) -> torch.device:
        """Where this client computes."""
        return self.images.device

    @property
    def seen(self) -> Seen:
        """Where the stream of classes stands for this client."""
        return Seen(self.task, self.num_old, self.num_classes)

    @property
    def network(self) -> Network:
        """The resident network; it holds this client's weights only after they were loaded."""
        return self.model.network

    @property
    def exemplars(self) -> Tensor:
        """Indices of what was kept of earlier tasks, in the order in which it was kept."""
        kept = self.state.get(EXEMPLARS)
        return kept if isinstance(kept, Tensor) else self.samples[:0]

    @property
    def held_out(self) -> Tensor:
        """Indices, old and new, that are not trained on during this task; none unless the method asks for them."""
        if not self.held_out_share or self.num_old == 0:
            return self.samples[:0]
        return self._once("held_out", self._hold_out)

    @property
    def local_set(self) -> Tensor:
        """Current data and exemplars together, less what is held out: what local training runs over."""
        return self._once("local_set", self._local_set)

    def _local_set(self) -> Tensor:
        return self._trained(torch.cat([self.samples, self.exemplars.repeat(self.settings.repeat_exemplars)]))

    @property
    def trained_exemplars(self) -> Tensor:
        """Exemplars that are trained on during this task."""
        return self._once("trained_exemplars", lambda: self._trained(self.exemplars))

    def _once(self, name: str, make: Callable[[], Tensor]) -> Tensor:
        """Return an index set, worked out again only when the buffer has become another one."""
        buffer = self.state.get(EXEMPLARS)
        if name not in self.sets or self.sets[name][0] is not buffer:
            self.sets[name] = buffer, make()
        return self.sets[name][1]

    def _hold_out(self) -> Tensor:
        old_labels, new_labels = (self.labels(indices).cpu().numpy() for indices in (self.exemplars, self.samples))
        old, new = hold_out(old_labels, new_labels, self.held_out_share, *self._shuffles())
        return torch.cat([self.exemplars[old.tolist()], self.samples[new.tolist()]])

    def _shuffles(self) -> tuple[Shuffle, Shuffle]:
        """Return in what order exemplars and samples are held out: anew in each task, or the same for good."""
        if self.redraws_held_out:
            rng = rng_at(self.seed, "held-out", self.task, self.id)
            return rng.permutation, rng.permutation
        # One number per image, in order, so that images that come later change nothing for the others.
        place = rng_at(self.seed, "held-out-for-good", self.id).random(len(self.images))
        return by_place(self.exemplars.cpu().numpy(), place), by_place(self.samples.cpu().numpy(), place)

    def _trained(self, indices: Tensor) -> Tensor:
        return indices[~torch.isin(indices, self.held_out)] if len(self.held_out) else indices

    def keep(self, chosen: Tensor, *, instead: bool = False) -> None:
        """Add exemplars to the buffer, or keep them instead of what it held."""
        earlier = self.exemplars[:0] if instead else self.exemplars
        self.state[EXEMPLARS] = torch.cat([earlier, chosen.to(earlier)])

    def labels(self, indices: Tensor) -> Tensor:
        """Return internal labels."""
        return self.images.labels[indices]

    @torch.no_grad()
    def features(self, indices: Tensor, *, augment: str | None = None) -> Iterator[Tensor]:
        """Yield features batch by batch in the given order, in evaluation mode.

        ``augment`` names a purpose to draw training augmentations for; without it images are taken as they are.
        """
        self.network.eval()
        size = self.settings.batch
        if augment is None and self.encode is not None and len(indices):
            yield from torch.split(self.encode(indices), size)
            return
        plan = None
        if augment is not None:
            rng = rng_at(self.seed, augment, self.task, self.round, self.id)
            plan = plan_epoch(rng, len(indices), self.images.augmentation)
            if self.settings.paste:
                replayed = (self.labels(indices) < self.num_old).cpu().numpy()
                pastes = plan_pastes(rng, replayed, self.settings.paste)
                plan = plan._replace(changes=torch.cat([pastes, plan.changes], dim=1))
        for start in range(0, len(indices), size):
            rows = slice(start, start + size)
            batch = indices[rows]
            if plan is not None:
                yield self.network.features(self.images.augmented(batch, plan, rows))
            else:
                yield self.network.features(self.images.plain(batch))

    def epoch(self, purpose: str, number: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels of this task's samples, batch by batch, shuffled and augmented as in training."""
        rng = rng_at(self.seed, purpose, self.task, self.id, number)
        plan = plan_epoch(rng, len(self.samples), self.images.augmentation)
        order = self.samples[plan.order.to(self.samples.device)]
        for start in range(0, len(order), self.settings.batch):
            rows = slice(start, start + self.settings.batch)
            yield self.images.augmented(order[rows], plan, rows), self.labels(order[rows])

    def remember(self, name: str, vector: Tensor) -> None:
        """Keep a vector of the trainable layout in the client's state, off the device."""
        self.state[name] = vector.detach().cpu()
        # A client may miss tasks, so the layout that a vector belongs to is kept with it.
        self.state[f"{name}.classes"] = self.num_classes

    def recall(self, name: str) -> Tensor | None:
        """Return a remembered vector in today's layout, zero for classes that came since; None if there is none."""
        if name not in self.state:
            return None
        vector = tensor_of(self.state, name).to(self.device)
        return self.model.widened(vector, int(number_of(self.state, f"{name}.classes")))
