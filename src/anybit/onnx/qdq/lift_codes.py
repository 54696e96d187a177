# SPDX-License-Identifier: Apache-2.0
"""Quantizers with the values of a QuantizeLinear-DequantizeLinear pair."""

from dataclasses import dataclass, replace

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.onnx.quantizers.grids import (
    GridMatch,
    Inexpressible,
    list_arguments,
    match_containing_grid,
    match_grid,
)
from anybit.onnx.quantizers.metadata import read_grid
from anybit.onnx.quantizers.native_types import NativeType
from anybit.onnx.quantizers.nodes import Scaling
from anybit.ops.grids import Coding, FloatGrid, Grid, IntegerGrid

_NONE = np.zeros((), np.float32)


@dataclass(frozen=True)
class LiftedQuantizer:
    """An operator call, the values to clip its output to, if any, and the difference, if any."""

    match: GridMatch
    clip: tuple[Array, Array] | None = None
    difference: str = ""


def compute_output(quantizer: GridMatch, x: Array) -> Array:
    """Return the output of the operator."""
    return np.asarray(
        quantizer.operator.function(
            x, *list_arguments(quantizer), **dict(quantizer.call.attributes)
        )
    )


def make_exact_quantizer(scaling: Scaling, lowest: Array, highest: Array) -> LiftedQuantizer | None:
    """Return the quantizer for codes lowest .. highest, if that is the range of an operator.

    The codes are relative to the zero-point, one or one per channel. ONNX adds the zero-point after
    rounding, so it only shifts the range: an operator without one has the same values.
    """
    bottom, top = int(lowest.min()), int(highest.max())
    if np.any(lowest != bottom) or np.any(highest != top):
        return None
    quantizer = match_grid(IntegerGrid(scaling.scale, _NONE, range(bottom, top + 1)))
    return LiftedQuantizer(quantizer) if quantizer is not None else None


def make_zeropt_quantizer(
    scaling: Scaling, lowest: Array, highest: Array
) -> LiftedQuantizer | None:
    """Return the quantizer with that zero-point, which differs for x at or near a tie."""
    zeropt = scaling.layout.zeropt
    bottom, top = int((lowest + zeropt).min()), int((highest + zeropt).max())
    if not np.any(zeropt) or np.any(lowest + zeropt != bottom) or np.any(highest + zeropt != top):
        return None
    quantizer = match_grid(IntegerGrid(scaling.scale, scaling.zeropt, range(bottom, top + 1)))
    if quantizer is None:
        return None
    first = zeropt.flat[np.flatnonzero(zeropt)[0]]
    return LiftedQuantizer(
        quantizer,
        difference=f"differs by one step at ties and next to them: zero-point {first:g} is added "
        "before rounding",
    )


def compose_quantizer(scaling: Scaling, lowest: Array, highest: Array) -> LiftedQuantizer:
    """Return the smallest quantizer with the codes, clipped to their values.

    Raises:
        Inexpressible: No operator has these codes.
    """
    bottom, top = int(lowest.min()), int(highest.max())
    quantizer = match_containing_grid(IntegerGrid(scaling.scale, _NONE, range(bottom, top + 1)))
    if quantizer is None:
        raise Inexpressible(f"no operator has the codes {bottom} .. {top}")
    with np.errstate(all="ignore"):  # infinite beyond float32
        low, high = (
            np.asarray(scaling.layout.broadcast(codes.astype(np.float32)) * scaling.scale)
            for codes in (lowest, highest)
        )
    return LiftedQuantizer(quantizer, (low, high))


def make_float_quantizer(scaling: Scaling) -> LiftedQuantizer:
    element = scaling.type.format
    quantizer = None if element is None else match_grid(FloatGrid(scaling.scale, element))
    if quantizer is None:
        raise Inexpressible(f"no operator has the values of {scaling.type.name}")
    return LiftedQuantizer(quantizer)


def lift_constant(
    scaling: Scaling, codes: Array, span: tuple[int, int] | None, metadata: dict[str, str]
) -> tuple[GridMatch, Array, str]:
    """Return the quantizer of a constant, its values, and a remark on a range without a quantizer.

    The range is `span`; without it, the range in the metadata if that contains the codes, else the
    range of the type.

    Raises:
        Inexpressible: No operator maps these values to themselves.
    """
    values = scaling.grid.decode(codes)
    for grid, note in _list_grids(scaling, codes, span, metadata):
        quantizer = match_grid(grid)
        if quantizer is None and isinstance(grid, IntegerGrid) and grid.coding is Coding.NEAREST:
            quantizer = match_containing_grid(grid)
            note = f"no quantizer has the codes {grid.lowest} .. {grid.highest} only"
        if quantizer is not None and np.array_equal(
            compute_output(quantizer, values), values, equal_nan=True
        ):
            return quantizer, values, note
    raise Inexpressible("its codes are too wide for float32, or have values that no operator has")


def _list_grids(
    scaling: Scaling, codes: Array, span: tuple[int, int] | None, metadata: dict[str, str]
) -> list[tuple[Grid, str]]:
    whole = scaling.grid
    if not isinstance(whole, IntegerGrid):
        return [(whole, "")]
    if span is not None:
        whole = replace(whole, codes=range(span[0], span[1] + 1))
    narrower = read_grid(whole, codes, metadata)
    return [*([(narrower, "")] if narrower is not None else []), (whole, "")]


def clip_codes(codes: Array, span: tuple[int, int], native: NativeType) -> Array:
    """Return integer codes, clipped."""
    if span == (native.lowest, native.highest):
        return codes
    return np.clip(codes.astype(np.int64), *span).astype(native.dtype.numpy())
