"""What a student learns from a teacher's logits, as a pure function."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def soft_cross_entropy(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Return the mean over a batch of the cross-entropy between softened teacher and softened student.

    The customary factor T^2 is left out, as in the published code of LwF, TARGET and LANDER: the weights of their
    losses were tuned without it. Equal logits give the teacher's entropy, not zero.
    """
    targets = F.softmax(teacher_logits / temperature, dim=1)
    return -(targets * F.log_softmax(student_logits / temperature, dim=1)).sum(dim=1).mean()
