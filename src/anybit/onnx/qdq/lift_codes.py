# SPDX-License-Identifier: Apache-2.0
"""Which quantizer gives the values of a QuantizeLinear and a DequantizeLinear."""

from dataclasses import dataclass, replace

import numpy as np

from anybit.onnx.graph.constants import Array
from anybit.onnx.quantizers.grids import Inexpressible, Match, arguments_of, containing, match
from anybit.onnx.quantizers.metadata import noted
from anybit.onnx.quantizers.native_types import NativeType
from anybit.onnx.quantizers.nodes import Scaling
from anybit.ops.grids import Coding, FloatGrid, Grid, IntegerGrid

_NONE = np.zeros((), np.float32)


@dataclass(frozen=True)
class Quantizer:
    """A call of an operator, the values between which its result is clipped, if it must be, and
    what differs, if anything does."""

    found: Match
    clip: tuple[Array, Array] | None = None
    difference: str = ""


def computed(found: Match, x: Array) -> Array:
    """The operator's result."""
    return np.asarray(
        found.operator.function(x, *arguments_of(found), **dict(found.call.attributes))
    )


def exact(scaling: Scaling, lowest: Array, highest: Array) -> Quantizer | None:
    """The quantizer for codes lowest .. highest, if that is the range of an operator.

    The codes are given less the zero-point, one or one per channel. ONNX adds the zero-point after
    rounding, so that it only shifts the range, and an operator without one gives the same values.
    """
    bottom, top = int(lowest.min()), int(highest.max())
    if np.any(lowest != bottom) or np.any(highest != top):
        return None
    found = match(IntegerGrid(scaling.scale, _NONE, range(bottom, top + 1)))
    return Quantizer(found) if found is not None else None


def with_zeropt(scaling: Scaling, lowest: Array, highest: Array) -> Quantizer | None:
    """The quantizer with that zero-point, which differs where x is at a tie or next to it."""
    zeropt = scaling.layout.zeropt
    bottom, top = int((lowest + zeropt).min()), int((highest + zeropt).max())
    if not np.any(zeropt) or np.any(lowest + zeropt != bottom) or np.any(highest + zeropt != top):
        return None
    found = match(IntegerGrid(scaling.scale, scaling.zeropt, range(bottom, top + 1)))
    if found is None:
        return None
    first = zeropt.flat[np.flatnonzero(zeropt)[0]]
    return Quantizer(
        found,
        difference=f"differs by one step at ties and next to them: zero-point {first:g} is added "
        "before rounding",
    )


def composed(scaling: Scaling, lowest: Array, highest: Array) -> Quantizer:
    """The smallest quantizer that has the codes, clipped to their values.

    Raises:
        Inexpressible: There is none.
    """
    bottom, top = int(lowest.min()), int(highest.max())
    found = containing(IntegerGrid(scaling.scale, _NONE, range(bottom, top + 1)))
    if found is None:
        raise Inexpressible(f"no operator has the codes {bottom} .. {top}")
    with np.errstate(all="ignore"):  # infinite where float32 ends
        low, high = (
            np.asarray(scaling.layout.broadcast(codes.astype(np.float32)) * scaling.scale)
            for codes in (lowest, highest)
        )
    return Quantizer(found, (low, high))


def float_activation(scaling: Scaling) -> Quantizer:
    assert scaling.type.format is not None, "asked for float types only"
    found = match(FloatGrid(scaling.scale, scaling.type.format))
    if found is None:
        raise Inexpressible(f"no operator has the values of {scaling.type.name}")
    return Quantizer(found)


def constant(
    scaling: Scaling, codes: Array, span: tuple[int, int] | None, metadata: dict[str, str]
) -> tuple[Match, Array, str]:
    """The quantizer for a constant, its values, and a word on a range that no quantizer has.

    The range is the given one, else that of the metadata if it fits the codes, else the type's.

    Raises:
        Inexpressible: No operator gives these values from themselves.
    """
    values = scaling.grid.decode(codes)
    for grid, note in _grids(scaling, codes, span, metadata):
        found = match(grid)
        if found is None and isinstance(grid, IntegerGrid) and grid.coding is Coding.NEAREST:
            found = containing(grid)
            note = f"no quantizer has the codes {grid.lowest} .. {grid.highest} only"
        if found is not None and np.array_equal(computed(found, values), values, equal_nan=True):
            return found, values, note
    raise Inexpressible("its codes are too wide for float32, or have values that no operator has")


def _grids(
    scaling: Scaling, codes: Array, span: tuple[int, int] | None, metadata: dict[str, str]
) -> list[tuple[Grid, str]]:
    whole = scaling.grid
    if not isinstance(whole, IntegerGrid):
        return [(whole, "")]
    if span is not None:
        whole = replace(whole, codes=range(span[0], span[1] + 1))
    narrower = noted(whole, codes, metadata)
    return [*([(narrower, "")] if narrower is not None else []), (whole, "")]


def clipped(codes: Array, span: tuple[int, int], native: NativeType) -> Array:
    """Integer codes, clipped."""
    if span == (native.lowest, native.highest):
        return codes
    return np.clip(codes.astype(np.int64), *span).astype(native.dtype.numpy())
