# SPDX-License-Identifier: Apache-2.0
"""Instructions that read or write float32."""

from typing import Any

from anybit.compiler.program import program as p

READS_FLOATS: tuple[type[Any], ...] = (
    *(p.Quantize, p.Elementwise, p.DynamicScale, p.DynamicZero, p.DynamicQuantize),
    *(p.Softmax, p.LayerNorm, p.SpatialMean),
)
"""The instructions whose sources are floats."""

_WRITES_FLOATS = (
    *(p.Dequantize, p.Elementwise, p.DynamicScale, p.DynamicZero),
    *(p.Softmax, p.LayerNorm, p.SpatialMean, p.BlockProduct),
)


def writes_floats(at: p.Instruction) -> bool:
    """Return whether the target of an instruction is one of floats."""
    has_floats = isinstance(getattr(at, "epilogue", None), p.Arithmetic)
    return isinstance(at, _WRITES_FLOATS) or has_floats
