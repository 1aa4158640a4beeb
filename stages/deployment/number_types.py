"""Which integer types this processor multiplies fast and without overflow."""

from collections.abc import Set
from dataclasses import asdict, dataclass
from typing import Any

VNNI = frozenset({"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"})
"""x86 flags: 8-bit products are summed in 32 bits."""

ARM_DOT_PRODUCT = frozenset({"asimddp"})


@dataclass(frozen=True)
class NumberTypes:
    """How a graph is quantized."""

    reduce_range: bool
    """Weights use 7 of their 8 bits."""

    because: str
    """What decided it. Names no processor: it goes into artifacts."""

    activations: str = "uint8"
    """Unsigned: ONNX Runtime leaves most convolutions of a residual net in float when they are signed."""

    weights: str = "int8"
    """Signed, symmetric, one scale per output channel."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for decision.json."""
        return asdict(self)


def number_types(flags: Set[str], forced: bool | None = None) -> NumberTypes:
    """Chooses by the processor's flags; `forced` sets `reduce_range` whatever they say.

    Without VNNI, x86 sums pairs of u8 x s8 products in 16 bits (VPMADDUBSW): 2 * 255 * 127 overflows and saturates,
    2 * 255 * 64 does not. A processor whose flags cannot be read (no Linux) is taken as one that saturates.
    """
    if forced is not None:
        return NumberTypes(forced, f"quantize.reduce_range is {str(forced).lower()}")
    if flags & (VNNI | ARM_DOT_PRODUCT):
        return NumberTypes(False, "weights use all 8 bits: VNNI, AMX or Arm dot product on the machine that decided")
    return NumberTypes(
        True, "weights use 7 of 8 bits: no VNNI, AMX or Arm dot product seen on the machine that decided"
    )
