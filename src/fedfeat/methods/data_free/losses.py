"""What guides a generator and its student, as pure functions."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def adversarial_loss(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return minus the mean KL(teacher || student), counting only images on whose class the two agree.

    Lowering it makes images on which the student is still unlike its teacher, without leaving their class.
    """
    agree = student_logits.argmax(dim=1) == teacher_logits.argmax(dim=1)
    return -(agree * _divergence(student_logits, teacher_logits)).mean()


def softened_divergence(student_logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Return T^2 times the mean KL(teacher || student) at temperature T: what the server's student learns by."""
    divergence = _divergence(student_logits / temperature, teacher_logits / temperature)
    return temperature**2 * divergence.mean()


def bounding_loss(mapped: Tensor, anchors: Tensor, radius: float) -> Tensor:
    """Return how far a batch is outside the ball around its anchors: max(0, MSE - radius), one hinge per batch."""
    return F.relu(F.mse_loss(mapped, anchors) - radius)


def _divergence(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    log_teacher = F.log_softmax(teacher_logits, dim=1)
    return (log_teacher.exp() * (log_teacher - F.log_softmax(student_logits, dim=1))).sum(dim=1)
