# SPDX-License-Identifier: Apache-2.0
import math
from collections.abc import Iterator, Mapping
from typing import Any

from anybit.ops.arrays import get_namespace
from anybit.ops.domain import Float32, Float32Scale, SmallZeroPoint
from anybit.ops.grids import Call
from anybit.ops.int_quant import generate_zeropt_remarks
from anybit.ops.operator import define_operator
from anybit.ops.remark import Remark

DEFAULT_AXIS = 1

# dtype: the array API's name, the lowest and the highest value
_TARGETS = {"s8": ("int8", -128, 127), "u8": ("uint8", 0, 255)}


def reshape_along_axis(value: Any, src: Any, name: str, attributes: dict[str, Any]) -> Any:
    """Return a 1-D parameter in the shape that broadcasts along the channel axis of src."""
    qtype, axis = attributes["qtype"], attributes["axis"]
    if qtype not in ("per_tensor", "per_channel"):
        raise ValueError(f"qtype must be per_tensor or per_channel, got {qtype!r}")
    expected, shape = 1, []
    # Only the default may be an axis that src lacks, and only if it is not used.
    if qtype == "per_channel" or axis != DEFAULT_AXIS:
        rank = src.ndim
        if not -rank <= axis < rank:
            raise ValueError(
                f"axis must be in [-{rank}, {rank - 1}] for src of rank {rank}, got {axis}"
            )
        shape = [1] * rank
    if qtype == "per_channel":
        expected = shape[axis] = src.shape[axis]
    unknown = expected is None or value.shape is None or None in value.shape  # in traced arrays
    if value.ndim > 1 or (not unknown and math.prod(value.shape) != expected):
        raise ValueError(
            f"{name} must have shape ({expected},) for {qtype}, got {tuple(value.shape)}"
        )
    return get_namespace(value).reshape(value, tuple(shape))


def _result_dtype(attributes: Mapping[str, Any]) -> str:
    return _TARGETS[get_target_name(attributes["dtype"])][0]


def _remarks(call: Call) -> Iterator[Remark]:
    target = call.attributes["dtype"]
    if target in _TARGETS and "zps" in call.parameters:
        _, lowest, highest = _TARGETS[str(target)]
        yield from generate_zeropt_remarks(call.parameters["zps"], range(lowest, highest + 1))


@define_operator(
    "DynamicQuantize",
    domain="anybit",
    attribute_names={"dtype": ("dst",)},
    place=reshape_along_axis,
    result_dtype=_result_dtype,
    remarks=_remarks,
)
def dynamic_quantize(
    src: Float32,
    scales: Float32Scale,
    zps: SmallZeroPoint | None = None,
    *,
    dtype: str = "s8",
    qtype: str = "per_tensor",
    axis: int = DEFAULT_AXIS,
    arithmetic: str = "divide",
    out: Any = None,
) -> Any:
    """Convert float32 to int8 or uint8 with scales and zero-points that are inputs.

        result = saturate(round_half_even(src / scale + zp))

    Other nodes compute them at run time; ONNX's DynamicQuantizeLinear does so itself.

    Args:
        src: float32, any shape.
        scales: float32, 1-D: one element (per_tensor) or src.shape[axis] (per_channel).
        zps: int8, uint8 or int32, as many as scales; 0 if not given. Added before rounding.
        dtype: "s8" or "u8", or the NumPy dtype int8 or uint8.
        qtype: "per_tensor" or "per_channel".
        axis: The channel axis, in [-rank, rank - 1].
        arithmetic: "divide" is the formula above. "reciprocal" computes src * (1 / scale) + zp,
            three roundings, which is what oneDNN does on CPUs.
        out: An int8 or uint8 array of src's shape to write to.

    Returns:
        An int8 or uint8 array of src's shape. NaN gives the lowest value (-128 or 0);
        infinities saturate.

    Raises:
        ValueError: Another qtype, dtype or arithmetic, an axis that src does not have, scales or
            zps of another shape, an `out` of another shape or dtype.
        TypeError: A src, scales or zps of another dtype.

    Source: oneDNN Graph operator DynamicQuantize.

    >>> import numpy as np
    >>> dynamic_quantize(np.array([0.5, 1.5, 300.0], np.float32), np.array([0.5], np.float32))
    array([  1,   3, 127], dtype=int8)
    """
    xp = get_namespace(src)
    target, lowest, highest = _TARGETS[get_target_name(dtype)]
    if arithmetic == "divide":
        y = src / scales
    elif arithmetic == "reciprocal":
        y = src * (1 / scales)
    else:
        raise ValueError(f"arithmetic must be divide or reciprocal, got {arithmetic!r}")
    if zps is not None:
        y = y + xp.astype(zps, src.dtype)
    q = xp.clip(xp.round(y), lowest, highest)
    return xp.astype(xp.where(xp.isnan(q), xp.full_like(q, lowest), q), getattr(xp, target))


def get_target_name(dtype: Any) -> str:
    """Return "s8" or "u8" for either spelling of a target: that name, or dtype int8 or uint8."""
    if dtype in _TARGETS:
        return str(dtype)
    spelled = getattr(dtype, "__name__", str(dtype)).rpartition(".")[2]
    for name, (array_name, _, _) in _TARGETS.items():
        if spelled == array_name:
            return name
    raise ValueError(f"dtype must be s8 or u8 (int8 or uint8), got {dtype!r}")
