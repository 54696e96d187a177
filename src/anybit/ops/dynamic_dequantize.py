# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator, Mapping
from typing import Any

from anybit.ops.arrays import get_namespace
from anybit.ops.domain import Byte, Float32Scale, SmallZeroPoint
from anybit.ops.dynamic_quantize import DEFAULT_AXIS, reshape_along_axis
from anybit.ops.gradient import Gradient
from anybit.ops.grids import Call
from anybit.ops.int_quant import generate_zeropt_remarks
from anybit.ops.operator import define_operator
from anybit.ops.remark import Remark

# Of either type: a call does not contain the type.
_CODES = range(-128, 256)
_LARGEST_ZERO = 2.0**31 - 128  # the next float32 is 2**31


def _subtract(src: Any, zps: Any) -> Any:
    """Return src - zps, rounded once to src's dtype."""
    if zps is None:
        return src
    xp = get_namespace(src)
    # Rounding a zero-point to float32 leaves a rest of at most 127: src - rest is exact. Rounded up
    # to 2**31, it would not be an int32 any more.
    rounded = xp.clip(xp.astype(zps, src.dtype), -(2.0**31), _LARGEST_ZERO)
    rest = xp.astype(zps - xp.astype(rounded, zps.dtype), src.dtype)
    return (src - rest) - rounded


def _partials(src: Any, scales: Any, zps: Any = None, **attributes: Any) -> tuple[Any, ...]:
    del scales, attributes  # the result is proportional to the scales
    return (_subtract(src, zps),)


def _result_dtype(attributes: Mapping[str, Any]) -> str:
    del attributes  # the same for all
    return "float32"


def _remarks(call: Call) -> Iterator[Remark]:
    if "zps" in call.parameters:
        yield from generate_zeropt_remarks(call.parameters["zps"], _CODES)


@define_operator(
    "DynamicDequantize",
    domain="anybit",
    place=reshape_along_axis,
    result_dtype=_result_dtype,
    gradient=Gradient(("scales",), _partials),
    remarks=_remarks,
)
def dynamic_dequantize(
    src: Byte,
    scales: Float32Scale,
    zps: SmallZeroPoint | None = None,
    *,
    qtype: str = "per_tensor",
    axis: int = DEFAULT_AXIS,
    out: Any = None,
) -> Any:
    """Convert int8 or uint8 to float32 with scales and zero-points that are inputs.

        result = float32(src - zp) * scale

    The counterpart of `dynamic_quantize`: src are codes, and the result is their values.

    Args:
        src: int8 or uint8, any shape.
        scales: float32, 1-D: one element (per_tensor) or src.shape[axis] (per_channel).
        zps: int8, uint8 or int32, as many as scales; 0 if not given. Their type need not be src's.
        qtype: "per_tensor" or "per_channel".
        axis: The channel axis, in [-rank, rank - 1].
        out: A float32 array of src's shape to write to.

    Returns:
        A float32 array of src's shape. The difference is exact and rounded once to float32, which
        changes only differences beyond 2**24; the product is rounded once. Any scale is just a
        factor: NaN gives NaN; an infinity gives infinities, and NaN where the difference is 0; a
        negative one gives -0.0 there.

    Raises:
        ValueError: Another qtype, an axis that src does not have, scales or zps of another shape,
            an `out` of another shape or dtype.
        TypeError: A src, scales or zps of another dtype.

    Source: oneDNN Graph operator DynamicDequantize.

    >>> import numpy as np
    >>> dynamic_dequantize(np.array([-2, 0, 3], np.int8), np.array([0.5], np.float32))
    array([-1. ,  0. ,  1.5], dtype=float32)
    """
    return _subtract(src, zps) * scales
