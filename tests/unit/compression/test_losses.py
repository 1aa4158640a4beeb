"""Distillation losses against their formula and against the size of their gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stages.compression.distillation.losses import DistillationLoss, distillation_loss, soft_loss


def logits(samples: int, classes: int, seed: int, scale: float = 3.0) -> Tensor:
    return torch.randn(samples, classes, generator=torch.Generator().manual_seed(seed)) * scale


def gradient(loss_of: Callable[[Tensor], Tensor], student: Tensor) -> float:
    student = student.clone().requires_grad_(True)
    loss_of(student).backward()
    assert student.grad is not None
    return float(student.grad.norm())


def test_soft_loss_is_the_formula() -> None:
    student, teacher = logits(5, 7, 0).double(), logits(5, 7, 1).double()
    ours, theirs = torch.softmax(student / 3.0, 1), torch.softmax(teacher / 3.0, 1)
    by_hand = 9.0 * (theirs * (theirs.log() - ours.log())).sum(1).mean()
    assert soft_loss(student, teacher, 3.0).item() == pytest.approx(by_hand.item(), rel=1e-12)


def test_soft_loss_of_equal_logits_is_zero_with_no_gradient() -> None:
    same = logits(4, 10, 0)
    assert soft_loss(same, same, 4.0).item() == pytest.approx(0.0, abs=1e-6)
    assert gradient(lambda s: soft_loss(s, same, 4.0), same) == pytest.approx(0.0, abs=1e-6)


def ratio(temperature: float, scaled: Callable[[Tensor], Tensor] = lambda loss: loss) -> float:
    """Soft over hard gradient for 100 classes, an early student (small logits) and a sure teacher."""
    student, teacher = logits(256, 100, 0, scale=0.75), logits(256, 100, 1, scale=3.0)
    hard = gradient(lambda s: F.cross_entropy(s, teacher.argmax(1)), student)
    return gradient(lambda s: scaled(soft_loss(s, teacher, temperature)), student) / hard


def test_soft_gradient_is_a_third_of_the_hard_one_at_temperature_4_and_100_classes() -> None:
    assert ratio(4.0) == pytest.approx(0.35, abs=0.02)
    assert ratio(4.0, lambda loss: loss / 16.0) == pytest.approx(0.022, abs=0.001)  # without T^2
    assert ratio(4.0, lambda loss: loss / 100.0) == pytest.approx(0.0035, abs=0.0002)  # the mean over classes too


@pytest.mark.parametrize(("temperature", "expected"), [(1.0, 0.54), (2.0, 0.46), (4.0, 0.35), (8.0, 0.32)])
def test_soft_gradient_keeps_its_size_over_temperatures(temperature: float, expected: float) -> None:
    assert ratio(temperature) == pytest.approx(expected, abs=0.03)


def test_alpha_weighs_the_two_losses() -> None:
    student, teacher, labels = logits(6, 5, 0), logits(6, 5, 1), torch.tensor([0, 1, 2, 3, 4, 0])
    soft, hard = soft_loss(student, teacher, 2.0), F.cross_entropy(student, labels)
    for alpha in (0.0, 0.3, 1.0):
        mixed = distillation_loss(student, teacher, labels, 2.0, alpha)
        assert mixed.item() == pytest.approx((alpha * soft + (1 - alpha) * hard).item(), rel=1e-6)


def test_label_smoothing_acts_on_the_hard_part() -> None:
    student, teacher, labels = logits(6, 5, 0), logits(6, 5, 1), torch.tensor([0, 1, 2, 3, 4, 0])
    plain = distillation_loss(student, teacher, labels, 2.0, 0.5)
    smoothed = distillation_loss(student, teacher, labels, 2.0, 0.5, label_smoothing=0.2)
    difference = F.cross_entropy(student, labels, label_smoothing=0.2) - F.cross_entropy(student, labels)
    assert (smoothed - plain).item() == pytest.approx(0.5 * difference.item(), rel=1e-4)


def test_the_loss_for_the_loop_asks_the_teacher_about_the_raw_batch() -> None:
    asked: list[Tensor] = []

    def teacher(raw: Tensor) -> Tensor:
        asked.append(raw)
        return raw.float()

    raw, student, labels = torch.eye(3), logits(3, 3, 0), torch.arange(3)
    loss = DistillationLoss(teacher, temperature=2.0, alpha=0.6)(student, labels, raw)
    assert len(asked) == 1
    assert asked[0] is raw
    assert loss.item() == pytest.approx(distillation_loss(student, raw, labels, 2.0, 0.6).item())
