"""A training step as loss terms see it, and the loss terms themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedfeat.models import Network


class Seen(NamedTuple):
    """Where the stream of classes stands: the task (from 0), classes of earlier tasks, classes up to this one."""

    task: int
    num_old: int
    num_classes: int


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
    num_prototypes: int  # of the whole frame; as many as seen classes unless an ETF was preallocated
    references: Mapping[str, Tensor]  # what the method's references made of this batch
    intermediate: tuple[
        Tensor, ...
    ]  # pooled features of every stage before its activation, if the method asks for them
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


def take_step(
    network: Network,
    images: Tensor,
    labels: Tensor,
    seen: Seen,
    *,
    references: Sequence[Callable[[Tensor], Mapping[str, Tensor]]] = (),
    wants_intermediate: bool = False,
) -> Step:
    """Run a batch forward and gather what loss terms see."""
    intermediate: tuple[Tensor, ...] = ()
    if wants_intermediate:
        outputs, intermediate = network.with_intermediate(images)
    else:
        outputs = network(images)
    # After the batch itself: a reference may run the network that is trained, and BatchNorm's running statistics
    # follow the order of passes.
    found = {key: value for function in references for key, value in function(images).items()}
    frame = network.head.num_prototypes
    return Step(*outputs, labels, seen.num_old, seen.num_classes, frame, found, intermediate, network)
