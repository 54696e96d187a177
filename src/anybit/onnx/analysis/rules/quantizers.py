# SPDX-License-Identifier: Apache-2.0
"""Our operators, QuantizeLinear and DequantizeLinear."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.carriers import MOST_CHANNELS, Carrier, Codes, of_codes
from anybit.onnx.analysis.constants import of_constant, of_integers, recovered, with_codes
from anybit.onnx.analysis.mismatch import Mismatch, check_channels
from anybit.onnx.analysis.points import Points, image, points_of, regrid
from anybit.onnx.analysis.units import EXACT, LOWEST_EXPONENT, exponent_of
from anybit.onnx.analysis.view import View, channels_of_constant, given, is_float, unknown
from anybit.onnx.folding.evaluation import evaluate_operator
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.operators.multi_threshold import staircase_of
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import dequantized, dtype_of, is_quantize, scaling_of
from anybit.onnx.quantizers.quantizer import OwnQuantizer, own_node, quantizer_of
from anybit.ops.domain import Role
from anybit.ops.grids import FloatGrid, Grid, IntegerGrid

# Formats of more values are described by their bounds.
_MOST_VALUES = 2**12
_MOST_IN_KEY = 64

_ONE, _ZERO = np.ones((), np.float32), np.zeros((), np.float32)


def quantized(node: ir.Node, view: View) -> Carrier | None:
    """Any quantizer: a node of ours, or one of ONNX's own two."""
    found = quantizer_of(node, view.traces)
    if found is None:
        own = own_node(node)
        return None if own is None else _of_stored_codes(own, view)
    if not isinstance(found, OwnQuantizer):
        return _linear(node, view, found.grid)
    if not is_float(node.outputs[0]) or not found.known or found.operator.result_dtype:
        return None
    grid, allowed = _integer_grid(found.grid)
    constant = _of_constant(found, grid, allowed, view)
    if constant is not None:
        return constant
    return _of_activation(found, grid, allowed, view)


def counted(node: ir.Node, view: View) -> Carrier | None:
    """Return what a MultiThreshold gives: the values of all its counts, of one scale or none."""
    values = staircase_of(node).values
    found = recovered(values[:, None], -1) if view.afford(values.size) else None
    return None if found is None else replace(found, integers=None)


def _of_stored_codes(found: OwnQuantizer, view: View) -> Carrier | None:
    """The values of constant codes that a dequantizer of ours reads; None for codes of a run."""
    if not found.constant or not found.known or found.x is None:
        return None
    codes = array_of(found.x)
    scale, zeropt = found.parameter(Role.SCALE), found.parameter(Role.ZERO_POINT)
    if scale is None or codes.dtype.name not in found.inputs[0].domain.dtypes:
        return None
    zeropt = np.zeros_like(scale) if zeropt is None else zeropt
    usual = np.isfinite(scale).all() and (scale > 0).all() and (np.abs(zeropt) < EXACT).all()
    if not usual:
        return _of_constant(found, None, None, view)
    limits, attributes = np.iinfo(codes.dtype), dict(found.attributes)
    try:
        placed = [
            found.operator.place(np.asarray(each, np.float32), codes, role, attributes)
            for role, each in ((Role.SCALE, scale), (Role.ZERO_POINT, zeropt))
        ]
    except ValueError:  # told with its parameters
        return None
    grid = IntegerGrid(placed[0], placed[1], range(limits.min, limits.max + 1))
    return _of_constant(found, grid, grid.codes, view)


def _integer_grid(
    grid: Grid | None,
) -> tuple[IntegerGrid | None, range | frozenset[int] | None]:
    """The grid in terms of integers, and which of them there are.

    The numbers of a small floating-point format are integers times its smallest one.
    """
    if not isinstance(grid, FloatGrid):
        return grid, None if grid is None else grid.codes
    form = grid.format
    unit, largest = form.smallest_subnormal, form.max_val / form.smallest_subnormal
    if not largest <= EXACT or 2.0 ** (form.bits + 1) > _MOST_VALUES or not grid.scale.size:
        return None, None
    scale = np.asarray(grid.scale * np.float32(unit), np.float32)
    if not np.array_equal(scale.astype(np.float64), grid.scale.astype(np.float64) * unit):
        return None, None
    members = frozenset(int(value / unit) for value in form.values())
    codes = range(-int(largest), int(largest) + 1)
    return IntegerGrid(scale, np.zeros((), np.float32), codes), members


def _of_constant(
    found: OwnQuantizer,
    grid: IntegerGrid | None,
    allowed: range | frozenset[int] | None,
    view: View,
) -> Carrier | None:
    arrays = [None if value is None else view.array(value) for value in found.node.inputs]
    x = arrays[0] if arrays else None
    if x is None or not view.afford(x.size):
        return None
    try:
        values = evaluate_operator(found.node, found.operator, arrays)
    except ModelError:  # told with its parameters
        return None
    if values.dtype != np.float32:
        return None
    coded = None if grid is None or allowed is None else with_codes(values, grid, allowed)
    if coded is None:
        view.keep(found.node.outputs[0], values)
    return coded or of_constant(values)


def _of_activation(
    found: OwnQuantizer,
    grid: IntegerGrid | None,
    allowed: range | frozenset[int] | None,
    view: View,
) -> Carrier | None:
    value = found.node.inputs[0]
    x = view.carrier(value) or unknown(value)
    aligned = _aligned([view.array(each) for each in found.node.inputs[1:]])
    if aligned is None:
        return _of_elements(grid, allowed, nan=x.nan)
    axis, arrays = aligned
    key = _key(found, x, axis, arrays)
    if key is None or key not in view.quantized:
        made = _quantized_points(found, grid, allowed, x, axis, arrays)
        if key is None:
            return made
        view.quantized[key] = made
    return view.quantized[key]


def _key(
    found: OwnQuantizer, x: Carrier, axis: int | None, arrays: Sequence[Array | None]
) -> tuple[object, ...] | None:
    """What calls that give the same have in common: networks repeat their quantizers."""
    described = x.key
    if described is None or any(each is not None and each.size > _MOST_IN_KEY for each in arrays):
        return None
    parameters = tuple(None if each is None else (each.dtype, each.tobytes()) for each in arrays)
    attributes = tuple(sorted(found.attributes.items()))
    return found.operator.name, axis, parameters, attributes, described


def _quantized_points(
    found: OwnQuantizer,
    grid: IntegerGrid | None,
    allowed: range | frozenset[int] | None,
    x: Carrier,
    axis: int | None,
    arrays: Sequence[Array | None],
) -> Carrier | None:
    """What becomes of the values that can occur, or of their ends."""
    points = points_of(x, axis, *(each for each in arrays if each is not None))
    channels = check_channels(*(each for each in arrays if each is not None))

    def function(values: Array) -> Array:
        shape = np.broadcast_shapes(values.shape, (channels,))
        spread = np.ascontiguousarray(np.broadcast_to(values, shape))
        return evaluate_operator(found.node, found.operator, [spread, *arrays])

    results = function(points.values)
    keeps = x.nan and bool(np.isnan(function(np.full((1, 1), np.nan, np.float32))).any())
    if grid is not None:
        made = _on_grid(results, points, grid, allowed, nan=keeps)
        if made is not None:
            return made
    plain = image(points, lambda values: results, (), nan=keeps)
    return replace(plain, exponent=_exponent(found.grid)) if grid is None else plain


def _exponent(grid: Grid | None) -> int | None:
    """Of which power of two the values of a floating-point format are multiples."""
    if not isinstance(grid, FloatGrid) or not np.isfinite(grid.scale).all():
        return None
    exponent = exponent_of(np.asarray(grid.format.smallest_subnormal)) + exponent_of(grid.scale)
    return max(LOWEST_EXPONENT, exponent)


def _on_grid(
    results: Array,
    points: Points,
    grid: IntegerGrid,
    allowed: range | frozenset[int] | None,
    *,
    nan: bool,
) -> Carrier | None:
    layout = grid.channels
    if layout is None:
        return None
    occur = np.broadcast_to(points.occur, results.shape)
    if np.isnan(results[occur]).any():
        return _of_all(grid, allowed, nan=True)
    axis = points.axis if points.axis is not None else layout.axis
    found = regrid(results, occur, layout.scale, layout.zeropt, axis)
    if found is None or found.codes is None:
        return None
    codes = replace(found.codes, allowed=allowed)
    if not points.every:
        among = None if allowed is None or isinstance(allowed, range) else allowed
        codes = replace(codes, step=grid.codes.step, members=among)
    return replace(found, codes=codes, nan=nan)


def _of_all(
    grid: IntegerGrid, allowed: range | frozenset[int] | None, *, nan: bool
) -> Carrier | None:
    """All values of a grid."""
    layout = grid.channels
    if layout is None or layout.scale.size > MOST_CHANNELS:
        return None
    lowest, highest = (np.asarray(each, np.int64) for each in (grid.lowest, grid.highest))
    members = None if allowed is None or isinstance(allowed, range) else allowed
    step = grid.codes.step
    codes = Codes(layout.scale, layout.zeropt, lowest, highest, step, members, allowed)
    return of_codes(codes, layout.axis, nan=nan)


def _of_elements(
    grid: IntegerGrid | None, allowed: range | frozenset[int] | None, *, nan: bool
) -> Carrier | None:
    """A grid with a scale per element, as a whole."""
    if grid is None or not 0 < grid.scale.size <= 2**16 or not 0 < grid.zeropt.size <= 2**16:
        return None
    try:
        scale, zeropt = np.broadcast_arrays(grid.scale, grid.zeropt)
    except ValueError:
        raise Mismatch("scales and zero-points have other shapes") from None
    lowest, highest = (np.asarray(each, np.int64) for each in (grid.lowest, grid.highest))
    flat = scale.reshape(-1), zeropt.reshape(-1)
    codes = Codes(*flat, lowest, highest, grid.codes.step, allowed=allowed)
    found = of_codes(codes, -1, nan=nan)
    return None if found is None else found.whole()


def _aligned(arrays: Sequence[Array | None]) -> tuple[int | None, list[Array | None]] | None:
    """Parameters as numbers or one per channel, and the axis; None if several axes vary."""
    axes, flat = set(), []
    for array in arrays:
        layout = None if array is None else channels_of_constant(array)
        if array is not None and layout is None:
            return None
        flat.append(None if layout is None else layout[1])
        axes.add(None if layout is None else layout[0])
    axes.discard(None)
    if len(axes) > 1:
        return None
    return next(iter(axes), None), flat


def _linear(node: ir.Node, view: View, known: Grid | None) -> Carrier | None:
    """`known` is the grid with what Clips and metadata say of its codes."""
    source = given(node, 0)
    if source is None:
        return None
    try:
        if is_quantize(node):
            return _quantized(node, view)
        grid = scaling_of(node, dtype_of(source)).grid
    except Inexpressible:
        return _of_stored(node, source, None, view)
    if isinstance(grid, FloatGrid):
        return _of_stored(node, source, grid, view)
    codes, layout = view.carrier(source), grid.channels
    if not isinstance(grid, IntegerGrid) or layout is None:
        return None
    if codes is None or codes.codes is None:
        return _of_all(grid, grid.codes, nan=False)
    if codes.integers is not None and view.afford(codes.integers.size):
        allowed = known.codes if isinstance(known, IntegerGrid) else grid.codes
        return of_integers(codes.integers, layout.scale, layout.zeropt, layout.axis, allowed)
    if layout.axis is not None and codes.axis not in (None, layout.axis):
        codes = codes.whole()
    if codes.codes is None:
        return None
    axis = layout.axis if codes.axis is None else codes.axis
    return of_codes(replace(codes.codes, scale=layout.scale, zeropt=layout.zeropt), axis)


def _of_stored(
    node: ir.Node, source: ir.Value, grid: FloatGrid | None, view: View
) -> Carrier | None:
    """A constant whose codes are floats, or have a scale per block; None for all else."""
    if not is_constant(source) or not view.afford(array_of(source).size):
        return None
    values = dequantized(node)
    if values is None or values.dtype != np.float32:
        return None
    integers, allowed = _integer_grid(grid)
    coded = None
    if integers is not None and allowed is not None:
        coded = with_codes(values, integers, allowed)
    if coded is None:
        view.keep(node.outputs[0], values)
    return coded or of_constant(values)


def _quantized(node: ir.Node, view: View) -> Carrier | None:
    """The integers that a QuantizeLinear gives."""
    scaling = scaling_of(node)
    grid, layout = scaling.grid, scaling.layout
    if not isinstance(grid, IntegerGrid):
        return None
    x = view.carrier(node.inputs[0]) or unknown(node.inputs[0])
    points = points_of(x, layout.axis, layout.scale, layout.zeropt)

    def function(values: Array) -> Array:
        codes = np.rint(values / layout.scale).astype(np.float64) + layout.zeropt
        return np.clip(codes, grid.lowest, grid.highest).astype(np.float32)

    found = image(points, function, [(_ONE, _ZERO)], nan=False)
    if found.codes is None and not found.infinite:
        ends = found.lowest.astype(np.int64), found.highest.astype(np.int64)
        found = of_codes(Codes(_ONE, _ZERO, *ends), found.axis) or found
    # What it makes of NaN is up to the runtime.
    if x.nan or found.nan or found.codes is None:
        found = _of_all(IntegerGrid(_ONE, _ZERO, grid.codes), grid.codes, nan=False) or found
    if found.codes is None:
        return found
    return replace(found, codes=replace(found.codes, allowed=grid.codes))
