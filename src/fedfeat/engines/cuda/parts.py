"""What a method adds to one client's steps, in a form that a captured step can read again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedfeat.algorithm.method import Buffers, Capturable

Kind = tuple[object, ...]


@dataclass(frozen=True)
class Parts:
    """What a visit adds to the plain step: looks, pushes and running statistics, with the tensors they use."""

    looks: tuple[Capturable, ...]
    pushes: tuple[tuple[str, Capturable], ...]
    buffers: tuple[Buffers, ...]  # one per statistic of the method; empty for those that do not look at steps

    @property
    def kind(self) -> Kind:
        """What visits must share to share a captured step: everything but the values of their tensors."""
        bounds = (*self.looks, *(push for _, push in self.pushes))
        shapes = tuple(tuple(t.shape) for t in self.tensors)
        return len(self.looks), tuple(name for name, _ in self.pushes), tuple(b.kind for b in bounds), shapes

    @property
    def tensors(self) -> list[Tensor]:
        """Return every tensor in a fixed order."""
        bounds = (*self.looks, *(push for _, push in self.pushes))
        return [t for b in bounds for t in b.tensors] + [t for b in self.buffers for t in b.values()]

    def copied(self) -> Parts:
        """Return the same parts with tensors of their own, which stay where they are."""
        return Parts(
            tuple(_copied(look) for look in self.looks),
            tuple((name, _copied(push)) for name, push in self.pushes),
            tuple({name: t.clone() for name, t in b.items()} for b in self.buffers),
        )


def _copied(bound: Capturable) -> Capturable:
    return replace(bound, tensors=tuple(t.clone() for t in bound.tensors))


def parts_of(looks: Sequence[object], pushes: Mapping[str, object], buffers: Sequence[Buffers]) -> Parts | None:
    """Return a visit's parts, or None if one of them cannot be captured."""
    bound_looks = tuple(look for look in looks if isinstance(look, Capturable))
    bound_pushes = tuple((name, push) for name, push in pushes.items() if isinstance(push, Capturable))
    if len(bound_looks) < len(looks) or len(bound_pushes) < len(pushes):
        return None
    return Parts(bound_looks, bound_pushes, tuple(buffers))
