"""What crosses between clients and server because of a method, declared entry by entry.

The screening of replies, the privacy statement, the documents and the communication table all read this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

SYMBOLS = {
    "theta": "numbers in the model's vector: weights, and BatchNorm's running statistics",
    "trained": "those of them that are trained",
    "theta_before": "`theta` at the end of the previous task, before the head grew",
    "trained_before": "`trained` at the end of the previous task",
    "R": "rounds in which the client takes part during a task",
    "S": "those of them that have a server step",
    "n": "images of the task that the client holds",
    "h": "classes that the client holds: of the task, and of its exemplars",
    "C": "classes seen so far, those of the task included",
    "N": "classes of the task",
    "d": "dimensions of a feature",
    "triangle": "numbers in the upper triangle of a `d` x `d` matrix: d (d + 1) / 2",
    "t": "dimensions of a text feature",
    "pool": "synthetic images that the server made",
    "pixels": "bytes of an image: height x width x channels",
    "G": "strengths of the gate that are tried; 1 without EGC",
    "D": "offsets that are tried",
}
OF_THE_CLIENT = frozenset({"n", "h"})  # sizes that differ from client to client
OFTEN = {"": "once per task", "R": "every round", "S": "rounds with a server step", "run": "once"}
ROUNDING = 1e-3  # by which a value may lie outside its range
LARGEST = 1e9  # of any number: sums over clients and squares of such numbers are still float32

Kind = Literal["number", "count", "class"]
Shape = tuple[str | int, ...]


@dataclass(frozen=True)
class Sent:
    """An entry besides the weights, losses and numbers of samples of training.

    An entry answers (up) or belongs to (down) one operation. Sizes in ``shape`` are numbers or ``SYMBOLS``. Values of
    the kind ``count`` are whole, not negative and no more than the samples that a client may have; those of the kind
    ``class`` are ids of seen classes, which say what the ``h`` rows of the operation's other entries belong to.
    """

    entry: str  # direction/operation/name, as in the traffic of a result; a name may end in ``*``
    meaning: str = ""
    shape: Shape | None = ()  # a single number by default; None where nothing is known of it
    kind: Kind = "number"
    low: float = -LARGEST
    high: float | str = LARGEST  # a number or one of ``SYMBOLS`` that the server knows
    item: int = 4  # bytes of a number
    often: str | None = None  # a key of ``OFTEN``; by default every round in training, and once in what follows it
    at_most: bool = False  # ``shape`` is an upper bound
    always: bool = False  # whoever is asked has an answer: an empty reply is a fault
    optional: bool = False  # some clients send it and others do not
    from_task: int = 1  # the first task (counted from 1) in which it is sent
    asked_by: str = ""  # the entry of a request that it answers, where not every request has it
    when: Callable[[Any], bool] | None = None  # settings of the part with which it is sent; all of them by default
    remark: str = ""  # a word more for the documents
    summed: bool = False  # the server needs no more of it than the sum over clients, or their mean weighted ``by``
    by: str = ""  # an entry of the kind ``count``
    reveals_update: str = ""  # why the server can compute the update from it, if it can: noise would protect nothing

    @property
    def up(self) -> bool:
        """Whether it leaves a client."""
        return self.entry.startswith("up/")

    @property
    def op(self) -> str:
        """The operation that it belongs to."""
        return self.entry.split("/")[1]

    @property
    def name(self) -> str:
        """Its key in the payload."""
        return self.entry.split("/", 2)[2]

    @property
    def times(self) -> str:
        """How often it crosses in a task, as a symbol; the empty string is once."""
        if self.often is not None:
            return self.often
        return "R" if self.op == "train" and not self.name.startswith("shared.") else ""

    @property
    def words(self) -> str:
        """What it is and how often it crosses."""
        return f"{self.meaning} ({OFTEN[self.times]})"

    @property
    def formula(self) -> str:
        """Bytes per client and task, an expression in ``SYMBOLS``."""
        numbers = [s for s in self.shape or () if isinstance(s, int)]
        symbols = [s for s in self.shape or () if isinstance(s, str)]
        size = math.prod([self.item, *numbers])
        return " * ".join([*([] if size == 1 and symbols else [str(size)]), *symbols, *filter(None, [self.times])])

    def expected(self, task: int, request: Collection[str]) -> bool:
        """Tell whether a client with samples sends it in a task (counted from 0), asked like this."""
        return task + 1 >= self.from_task and (not self.asked_by or self.asked_by in request)

    def bytes(self, symbols: Mapping[str, float]) -> float:
        """Return the formula's value."""
        factors = (symbols[s] if isinstance(s, str) else s for s in (*(self.shape or ()), self.times or 1))
        return float(self.item * math.prod(factors))


PREVIOUS_MODEL = Sent(
    "down/train/shared.previous_model", shape=("theta_before",), remark="only to clients that miss a task's first round"
)


def final_model(op: str) -> Sent:
    """Return the declaration of the model that a task ended with, sent for an operation at its end."""
    return Sent(f"down/{op}/weights", "the model that the task ended with", ("theta",))


def in_words(meaning: str, name: str) -> Sent:
    """Return the declaration of an entry of which nothing but its meaning is known: any operation, any value."""
    return Sent(f"up/*/{name}", meaning, shape=None, often="")
