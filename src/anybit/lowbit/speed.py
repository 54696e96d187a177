# SPDX-License-Identifier: Apache-2.0
"""How fast a compiled model is, beside the float graph."""

from dataclasses import dataclass

from anybit.text import duration

# What is within this may be chance.
_CLEARLY = 1.2


@dataclass(frozen=True)
class Speed:
    """The seconds of a run of one row.

    Attributes:
        compiled: On integers, as far as it was compiled.
        floats: The float graph in ONNX Runtime, whose results are those that are promised.
        optimized: The same with graph optimizations, which may change results.
    """

    compiled: float
    floats: float
    optimized: float

    @property
    def is_slower(self) -> bool:
        """Whether the compiled model is clearly slower than the float graph, in either way."""
        return self.compiled > _CLEARLY * min(self.floats, self.optimized)

    def __str__(self) -> str:
        return (
            f"{duration(self.compiled)} per run of one row: {self.floats / self.compiled:.3g} x as "
            f"fast as the float graph in ONNX Runtime ({duration(self.floats)}), "
            f"{self.optimized / self.compiled:.3g} x with graph optimizations "
            f"({duration(self.optimized)}), which may change results"
        )
