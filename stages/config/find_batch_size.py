"""Section `find_batch_size`: how the effective batch is split on this machine."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from stages.config.base import Count, Positive, Section


class FindBatchSize(Section):
    """Finds micro-batch x accumulation for the effective batch of `train.batch_size` within a memory budget."""

    memory_budget_mib: Positive | None = None
    """Peak memory that a training may use, in MiB; null: what the device or the container has. On a CPU the whole
    process counts (PyTorch alone takes some 250 MiB), on a GPU what PyTorch holds there."""

    safety_margin: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.2
    """Share of the budget that is left free."""

    fixed_micro_batch: Count | None = None
    """Set: use this micro-batch, search nothing. It must divide the effective batch."""

    @model_validator(mode="after")
    def _settings_take_effect(self) -> Self:
        if self.fixed_micro_batch is not None and self.memory_budget_mib is not None:
            raise ValueError(
                "memory_budget_mib has no effect with fixed_micro_batch, which searches nothing; set one of them null"
            )
        return self
