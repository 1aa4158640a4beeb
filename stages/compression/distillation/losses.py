"""Losses of knowledge distillation.

Hinton, Vinyals & Dean 2015, "Distilling the Knowledge in a Neural Network", https://arxiv.org/abs/1503.02531.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

Teacher = Callable[[Tensor], Tensor]
"""Raw batch -> logits (n, classes), without gradients; see `teacher.py`."""


def soft_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), summed over the classes, mean over the batch; a scalar.

    Both logits are float (n, classes). The factor T^2 keeps the size of the gradient as T grows (section 2 of the
    paper); the mean over classes as well (`reduction="mean"`) would shrink it by their number.
    """
    ours = F.log_softmax(student / temperature, dim=1)
    theirs = F.log_softmax(teacher / temperature, dim=1)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * temperature**2


def distillation_loss(
    student: Tensor, teacher: Tensor, labels: Tensor, temperature: float, alpha: float, label_smoothing: float = 0.0
) -> Tensor:
    """The weighted sum alpha * soft loss + (1 - alpha) * cross entropy with the labels; a scalar, mean over the batch.

    Logits are float (n, classes), labels int64 (n,) or, mixed, float (n, classes).
    """
    hard = F.cross_entropy(student, labels, label_smoothing=label_smoothing)
    return alpha * soft_loss(student, teacher, temperature) + (1.0 - alpha) * hard


class DistillationLoss:
    """A loss for the training loop: called with (logits, labels, raw batch), it asks the teacher about the same batch.

    The teacher sees the raw samples through the same preprocessing as the student.
    """

    def __init__(self, teacher: Teacher, temperature: float, alpha: float, label_smoothing: float = 0.0) -> None:
        self.teacher = teacher
        self.temperature = temperature
        self.alpha = alpha
        self.label_smoothing = label_smoothing

    def __call__(self, logits: Tensor, labels: Tensor, raw: Tensor) -> Tensor:
        """Scalar loss, mean over the micro-batch."""
        soft = self.teacher(raw)
        return distillation_loss(logits, soft, labels, self.temperature, self.alpha, self.label_smoothing)
