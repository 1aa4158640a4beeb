"""Section `benchmark_data`: how fast the data can be loaded."""

from typing import Annotated

from pydantic import Field

from stages.config.base import Count, Positive, Section


class BenchmarkData(Section):
    """Measures loader settings; the choice changes speed, never a result."""

    workers: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = [0, 2]
    """Numbers of worker processes to try, each with and without batched indexing."""

    time_budget_s: Positive = 8.0
    """Stop measuring after so many seconds; every candidate is tried at least once."""

    batches: Count = 30
    """Batches timed per candidate, after the first."""

    fixed_workers: Annotated[int, Field(ge=0)] | None = None
    """Set: use so many workers, measure nothing else."""
