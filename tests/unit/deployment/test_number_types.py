"""The processor decides the number types."""

import pytest

from stages.deployment.number_types import number_types


@pytest.mark.parametrize(
    ("flags", "reduced"),
    [
        ({"avx2", "avx512f", "avx512_vnni"}, False),
        ({"avx2", "avx_vnni"}, False),
        ({"amx_int8", "avx2"}, False),
        ({"fp", "asimd", "asimddp"}, False),
        ({"avx2", "fma"}, True),
        (set(), True),
    ],
)
def test_reduced_range_exactly_without_a_wide_sum(flags: set[str], reduced: bool) -> None:
    types = number_types(flags)
    assert types.reduce_range is reduced
    assert (types.activations, types.weights) == ("uint8", "int8")
    assert types.because


def test_the_parameter_overrules_the_processor_and_says_so() -> None:
    types = number_types({"avx512_vnni"}, forced=True)
    assert types.reduce_range
    assert "quantize.reduce_range" in types.because
