"""A method is parts: a head, loss terms, references, penalties, a replay rule, statistics, a prediction.

Each part is small and knows nothing of tasks, rounds or the other clients' loop; the federation puts them to work.
A part may inherit from its protocol and override what it needs: what it leaves out does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from fedfeat.algorithm.client import Client
from fedfeat.algorithm.losses import cross_entropy, new_class_cross_entropy
from fedfeat.algorithm.sent import Sent, in_words
from fedfeat.algorithm.server import Server
from fedfeat.algorithm.step import Known, LossTerm, Seen, Step
from fedfeat.algorithm.tables import OWN, OWN_LABEL
from fedfeat.algorithm.task_end import TaskEnd
from fedfeat.core.payload import Payload
from fedfeat.geometry.egc import RankNorm, Subspace
from fedfeat.models import HeadFactory, LinearHead, Network, Outputs

Op = Callable[[Client, Payload], Payload]
Buffers = dict[str, Tensor]
# Images of a batch -> what a step's loss terms refer to; ``client.batch`` has the batch's indices.
ReferenceFunction = Callable[[Tensor], dict[str, Tensor]]
PenaltyGradient = Callable[[Tensor, Tensor], Tensor]  # (weights, gradient to add to) -> value of the penalty


@dataclass(frozen=True)
class Capturable:
    """A reference or penalty function that an engine may capture, and the tensors of one client's local update.

    The function is the same for every update of the same ``kind``, and whatever else it refers to (networks from
    ``client.frozen``, settings) stays in place. So it is captured once, and each update's tensors are copied in.
    """

    function: Callable[..., Any]
    tensors: tuple[Tensor, ...] = ()
    kind: tuple[int, ...] = ()  # what else may differ between updates, such as the number of frozen networks
    by_image: bool = False  # row i of what a reference returns depends on image i alone, whatever the batch

    def __call__(self, *inputs: Tensor) -> Any:
        """Call the function with the step's inputs, then its tensors."""
        return self.function(*inputs, *self.tensors)

    def copied(self) -> Capturable:
        """Return the same with tensors of its own."""
        return replace(self, tensors=tuple(t.clone() for t in self.tensors))


class Reference(Protocol):
    """Something besides the batch that a step refers to: a frozen model, a synthetic batch.

    A function that is ``Capturable`` runs at full speed on engine cuda; any other callable works too, in eager mode.
    A reference says ``alike = True`` if its capturable function is the same for every client of a round, so that only
    its tensors differ: many small clients can then be trained at once. A function that says ``by_image`` may be called
    for the images of several batches or clients together.
    """

    def start(self, client: Client, request: Payload) -> ReferenceFunction | None:
        """Return a function from a batch's images to tensors for ``Step.references``, or None if not needed now."""
        return None


class Penalty(Protocol):
    """A pull on the weights themselves, with its gradient in closed form."""

    name: str

    def start(self, client: Client, request: Payload) -> PenaltyGradient | None:
        """Return a function that adds to the gradient and returns the penalty, or None if there is none now."""
        return None


class Statistic(Protocol):
    """What clients measure while or after they train, and how the server joins the numbers."""

    @property
    def per_step(self) -> bool:
        """Whether ``update`` does anything; if not, steps can be captured without it."""
        return False

    def start(self, client: Client, request: Payload) -> Buffers:
        """Make the buffers that ``update`` writes into."""
        return {}

    def update(self, network: Network, step: Step, buffers: Buffers) -> None:
        """Take in one training step, without a branch on a tensor's value."""
        return None

    def finish(self, client: Client, buffers: Buffers) -> Payload:
        """Return what the client sends along with its weights; may write to the client's state."""
        return {}

    def reduce(self, replies: Sequence[Payload]) -> dict[str, float]:
        """Return the numbers that the server keeps; an empty dict leaves the earlier ones in place."""
        return {}


class ServerStep(Protocol):
    """What the server does beyond averaging."""

    def broadcast(self, server: Server) -> Payload:
        """Return entries for every training request of the coming round."""
        return {}

    def after_round(self, server: Server, replies: Mapping[int, Payload]) -> None:
        """Change the server's weights, numbers or tensors; ``replies`` come without the weights."""
        return None


class TaskEndStep(Protocol):
    """What happens at the end of a task: the server's side here, the clients' side in ``ops``.

    A step says ``by_address = True`` if its ops do nothing but keep ``quota`` of the client's samples, or all if there
    are fewer, drawn by address. A simulation then runs them when a client takes part again: others cost nothing.
    """

    after_last: bool = False  # whether it is also needed after the last task

    def ops(self) -> dict[str, Op]:
        """Return the operations that clients answer."""
        return {}

    def at_task_end(self, task_end: TaskEnd) -> None:
        """Do the server's part, asking clients through the exchange."""


class EnergyMeasure(NamedTuple):
    """How the energy of a feature is measured, and which of the server's numbers are priors on the same scale."""

    subspace: Subspace = "span"
    rank_norm: RankNorm = "minus_one"
    priors: tuple[str, str] | None = None  # names, in the order of ``tables.SPANS``


class Prediction(Protocol):
    """How logits become a prediction, given what the server keeps, and what that is called."""

    name: str = OWN  # for commands: ``--correction egc``
    label: str = OWN_LABEL  # for people: a position of the report's switch
    gives_cosines: bool = False  # with an ETF head, in place of logits in the units of training
    replaceable: bool = False  # goes with the base's own loss: a part that predicts in another way takes its place

    def __call__(self, network: Network, outputs: Outputs, seen: Seen, known: Known) -> Tensor:
        """Return corrected logits [B, C]."""


def linear_head(dim: int, seed: int, num_classes: int) -> LinearHead:
    """Make the ordinary classifier."""
    return LinearHead(dim, seed=seed)


CROSS_ENTROPY = LossTerm("ce", lambda step: cross_entropy(step.logits, step.labels))
# What the published exemplar-free methods train on: old and new logits never compete.
NEW_CLASS_CROSS_ENTROPY = LossTerm(
    "ce", lambda step: new_class_cross_entropy(step.logits, step.labels, step.num_old), new_classes_only=True
)


# Fields of a method that say how clients train.
OF_TRAINING = (
    *("loss", "head", "extras", "terms", "wants_intermediate", "references", "penalties", "grad_clip"),
    *("keeps_previous_model", "statistics", "server_steps", "held_out"),
)


@dataclass(frozen=True)
class Method:
    """A composition of parts; add-ons return a changed copy."""

    name: str
    trains: bool = True  # in rounds; without them a task is its end
    loss: LossTerm = CROSS_ENTROPY
    head: HeadFactory = linear_head
    has_etf_head: bool = False
    extras: Mapping[str, Callable[[int], nn.Module]] = field(default_factory=dict)  # trained layers of terms, by name
    terms: tuple[LossTerm, ...] = ()
    wants_intermediate: bool = False
    references: tuple[Reference, ...] = ()
    balanced: bool = False  # the loss takes the frequencies of classes into account
    distils: bool = False  # the previous model teaches old classes
    trains_on_references: bool = False  # a reference runs the network that is trained, and gradients go through it
    penalties: tuple[Penalty, ...] = ()
    keeps_previous_model: bool = False  # clients keep the model that the previous task ended with
    grad_clip: float | None = None
    replay: TaskEndStep | None = None
    keeps_everything: bool = False  # no budget holds for it: a bound, and no competitor
    task_end: tuple[TaskEndStep, ...] = ()  # runs before the replay rule
    statistics: tuple[Statistic, ...] = ()
    encodes_exemplars: bool = False  # after training, as they are: an engine may have their features ready by then
    server_steps: tuple[ServerStep, ...] = ()
    held_out: float = 0.0  # share of exemplars that clients do not train on during a task
    redraws_held_out: bool = True  # other exemplars in every task; otherwise the same for good
    predict: Prediction | None = None
    variants: Mapping[str, Prediction] = field(default_factory=dict)  # other predictions to evaluate for the record
    energies: EnergyMeasure = field(default_factory=EnergyMeasure)  # how an evaluation measures those of test features
    sends: Mapping[str, Sent] = field(default_factory=dict)  # by name, from the declarations of the method's parts
    sizes: Mapping[str, int] = field(default_factory=dict)  # of symbols in declared shapes that settings decide
    notes: tuple[str, ...] = ()  # what the log and the result should say about this method
    refuses: Mapping[str, str] = field(default_factory=dict)  # streams of images that it cannot follow, and why

    def __post_init__(self) -> None:
        """Take up what a method's file declares in words alone."""
        sends = {name: in_words(s, name) if isinstance(s, str) else s for name, s in self.sends.items()}
        object.__setattr__(self, "sends", sends)

    @property
    def corrects(self) -> bool:
        """Whether a part decides how to predict, so that no other one can."""
        return self.predict is not None and not getattr(self.predict, "replaceable", False)

    def prediction_labels(self) -> dict[str, str]:
        """Return what the method's own prediction (``own``) and its variants, by name, are called for people."""
        if self.predict is None:
            return {}
        named = {OWN: self.predict, **self.variants}
        return {name: str(getattr(prediction, "label", OWN_LABEL)) for name, prediction in named.items()}

    @property
    def steps_alike(self) -> bool:
        """Whether a training step is the same function for every client, up to tensors that lie side by side.

        It is not with references that differ between clients, penalties on the weights, or statistics of single steps.
        """
        alike = all(getattr(reference, "alike", False) for reference in self.references)
        return self.trains and alike and not (self.penalties or any(s.per_step for s in self.statistics))

    def refusal(self, stream: str) -> str | None:
        """Return why the method cannot follow a stream: ``blurry``, ``lag`` or ``domains``; None if it can."""
        if stream == "blurry" and self.loss.new_classes_only:
            return "its softmax covers new classes only, and images of old ones come too"
        return self.refuses.get(stream)

    def rounds(self, planned: int) -> int:
        """Return how many of the planned rounds a task has."""
        return planned if self.trains else 0

    def active_terms(self, task: int) -> tuple[LossTerm, ...]:
        """Return the loss terms of a task (counted from 0), the classification loss first."""
        return tuple(t for t in (self.loss, *self.terms) if task + 1 >= t.from_task and t.weight != 0)

    def task_end_steps(self) -> tuple[TaskEndStep, ...]:
        """Return everything that happens at the end of a task, selection last."""
        return (*self.task_end, *((self.replay,) if self.replay else ()))

    def ops(self) -> dict[str, Op]:
        """Return the operations that clients answer at the end of a task."""
        return {name: op for step in self.task_end_steps() for name, op in step.ops().items()}


@dataclass(frozen=True)
class ActiveParts:
    """A method's parts in one client's local update: what they add to its steps and to its reply.

    A new kind of part is a protocol and a field of ``Method`` above, and its place in here.
    """

    references: tuple[ReferenceFunction, ...] = ()
    penalties: tuple[tuple[str, PenaltyGradient], ...] = ()
    statistics: tuple[tuple[Statistic, Buffers], ...] = ()

    @classmethod
    def start(cls, method: Method, client: Client, request: Payload) -> ActiveParts:
        """Start every part on what the client received; those that are not needed now are left out."""
        references = (r.start(client, request) for r in method.references)
        penalties = ((p.name, p.start(client, request)) for p in method.penalties)
        return cls(
            tuple(function for function in references if function is not None),
            tuple((name, function) for name, function in penalties if function is not None),
            tuple((statistic, statistic.start(client, request)) for statistic in method.statistics),
        )

    @property
    def penalty_names(self) -> list[str]:
        """Return the names of the penalties, in the order of their values."""
        return [name for name, _ in self.penalties]

    def penalise(self, weights: Tensor, gradient: Tensor) -> list[Tensor]:
        """Add every penalty to the gradient and return the values."""
        return [function(weights, gradient).detach().view(1) for _, function in self.penalties]

    def observe(self, step: Step) -> None:
        """Let statistics of single steps see one."""
        for statistic, buffers in self.statistics:
            if statistic.per_step:
                statistic.update(step.network, step, buffers)

    def finish(self, client: Client) -> Payload:
        """Return what the statistics add to the client's reply."""
        return {name: value for s, buffers in self.statistics for name, value in s.finish(client, buffers).items()}

    @property
    def changes_gradient(self) -> bool:
        """Whether ``penalise`` does anything."""
        return bool(self.penalties)

    @property
    def capturable(self) -> bool:
        """Whether an engine may capture a step with these parts."""
        return all(isinstance(function, Capturable) for function in self._functions)

    @property
    def kind(self) -> tuple[object, ...]:
        """What local updates must share to share a captured step: everything but the values of their tensors."""
        kinds = tuple(f.kind for f in self._functions if isinstance(f, Capturable))
        shapes = tuple(tuple(t.shape) for t in self.tensors)
        return len(self.references), tuple(self.penalty_names), kinds, shapes

    @property
    def tensors(self) -> list[Tensor]:
        """Return every tensor that a captured step reads or writes, in a fixed order."""
        own = [t for f in self._functions if isinstance(f, Capturable) for t in f.tensors]
        return own + [t for _, buffers in self.statistics for t in buffers.values()]

    def copied(self) -> ActiveParts:
        """Return the same parts with tensors of their own, which stay where they are."""
        return ActiveParts(
            tuple(_copied(function) for function in self.references),
            tuple((name, _copied(function)) for name, function in self.penalties),
            tuple((s, {name: t.clone() for name, t in buffers.items()}) for s, buffers in self.statistics),
        )

    @property
    def _functions(self) -> list[Callable[..., Any]]:
        return [*self.references, *(function for _, function in self.penalties)]


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.copied() if isinstance(function, Capturable) else function
