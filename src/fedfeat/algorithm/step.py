"""A training step as loss terms see it, the loss terms, and the loss of a batch as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedfeat.core.errors import ConfigError
from fedfeat.models import Network
from fedfeat.models.network import Outputs

Work = Callable[[], None]
Repeat = Callable[[Work, Sequence[Tensor]], Work]


def as_it_is(work: Work, touched: Sequence[Tensor]) -> Work:
    """Return the work; an engine that tries it out first puts back the tensors it touches."""
    return work


class Seen(NamedTuple):
    """Where the stream of classes stands: the task (from 0), classes of earlier tasks, classes up to this one."""

    task: int
    num_old: int
    num_classes: int

    @property
    def num_before(self) -> int:
        """Classes of the model that the previous task ended with: the old ones, or all where none ever comes."""
        return self.num_old if self.num_old or self.task == 0 else self.num_classes


class Known(NamedTuple):
    """What the server keeps besides the model: numbers (priors, strengths) and tensors (prototypes)."""

    numbers: Mapping[str, float]
    tensors: Mapping[str, Tensor]


class Step(NamedTuple):
    """What a loss term sees of a training step: tensors of fixed shape and the class counts."""

    features: Tensor
    logits: Tensor
    labels: Tensor
    num_old: int
    num_classes: int
    num_prototypes: int  # of the whole ETF; as many as seen classes unless it was preallocated
    references: Mapping[str, Tensor]  # what the method's references made of this batch
    intermediate: tuple[Tensor, ...]  # pooled features of every stage before its activation, where asked for
    network: Network  # for terms with trained layers of their own (``network.extras``)


class Fusable(NamedTuple):
    """A pure function of (features, labels, number of prototypes) and options that engines may have a kernel for."""

    function: Callable[..., Tensor]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class LossTerm:
    """A weighted, named loss: a pure function of a step, active from a task on (counted from 1)."""

    name: str
    function: Callable[[Step], Tensor]
    weight: float = 1.0
    from_task: int = 1
    fusable: Fusable | None = None  # the same as a pure function, for engines with kernels of their own
    new_classes_only: bool = False  # a softmax in which old and new logits never compete


References = Sequence[Callable[[Tensor], Mapping[str, Tensor]]]  # images of a batch -> entries of ``Step.references``
Forward = Callable[[Tensor], tuple[Outputs, tuple[Tensor, ...]]]  # images -> outputs, intermediate features
LossOf = Callable[[LossTerm], Callable[[Step], Tensor]]


def take_step(
    network: Network,
    images: Tensor,
    labels: Tensor,
    seen: Seen,
    *,
    references: References = (),
    wants_intermediate: bool = False,
    forward: Forward | None = None,
) -> Step:
    """Run a batch forward, in the engine's own way if it has one, and gather what loss terms see."""
    intermediate: tuple[Tensor, ...] = ()
    if wants_intermediate:
        outputs, intermediate = network.with_intermediate(images)
    elif forward is not None:
        outputs, intermediate = forward(images)
    else:
        outputs = network(images)
    # After the batch itself: a reference may run the network that is trained, and BatchNorm's running statistics
    # follow the order of passes.
    found = {key: value for function in references for key, value in function(images).items()}
    prototypes = network.head.num_prototypes
    return Step(*outputs, labels, seen.num_old, seen.num_classes, prototypes, found, intermediate, network)


@dataclass(frozen=True)
class Objective:
    """The loss of a client in one task, as a function of a batch: weighted terms [terms], one by one."""

    network: Network
    seen: Seen
    terms: tuple[LossTerm, ...]
    wants_intermediate: bool = False
    forward: Forward | None = None
    loss_of: LossOf = attrgetter("function")

    def __call__(self, images: Tensor, labels: Tensor, references: References) -> tuple[Step, Tensor]:
        """Return the step and its weighted losses."""
        step = take_step(
            self.network,
            images,
            labels,
            self.seen,
            references=references,
            wants_intermediate=self.wants_intermediate,
            forward=self.forward,
        )
        return step, torch.stack([term.weight * _one_number(term, self.loss_of(term)(step)) for term in self.terms])


def _one_number(term: LossTerm, loss: Tensor) -> Tensor:
    if not isinstance(loss, Tensor) or loss.ndim:
        came = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ConfigError(
            f"the loss term {term.name!r} returned {came}; return a tensor of one number, such as a mean over the batch"
        )
    return loss
