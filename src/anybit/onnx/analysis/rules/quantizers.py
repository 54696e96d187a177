# SPDX-License-Identifier: Apache-2.0
"""Quantizers of this package, QuantizeLinear and DequantizeLinear."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.analysis.abstract_values import (
    MOST_CHANNELS,
    AbstractValue,
    CodeRanges,
    from_codes,
)
from anybit.onnx.analysis.constants import (
    encode_constant,
    from_constant,
    from_integers,
    recover_codes,
)
from anybit.onnx.analysis.mismatch import Mismatch, check_channels
from anybit.onnx.analysis.points import Points, list_points, map_points, regrid
from anybit.onnx.analysis.units import EXACT, LOWEST_EXPONENT, find_exponent
from anybit.onnx.analysis.view import (
    View,
    find_constant_channels,
    get_input,
    make_unknown,
    may_be_float32,
)
from anybit.onnx.folding.evaluation import evaluate_operator
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.operators.multi_threshold import read_staircase
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import dequantize_constant, get_dtype, is_quantize, read_scaling
from anybit.onnx.quantizers.quantizer import OwnQuantizer, find_own_quantizer, find_quantizer
from anybit.ops.domain import Role
from anybit.ops.grids import FloatGrid, Grid, IntegerGrid

# Larger formats are described by their bounds.
_MOST_VALUES = 2**12
_MOST_IN_KEY = 64

_ONE, _ZERO = np.ones((), np.float32), np.zeros((), np.float32)


def infer_quantizer(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the output of any quantizer: of this package, or one of ONNX's pair."""
    quantizer = find_quantizer(node, view.traces)
    if quantizer is None:
        stored = find_own_quantizer(node)
        return None if stored is None else _infer_stored_codes(stored, view)
    if not isinstance(quantizer, OwnQuantizer):
        return _infer_linear(node, view, quantizer.grid)
    if (
        not may_be_float32(node.outputs[0])
        or not quantizer.static
        or quantizer.operator.result_dtype
    ):
        return None
    grid, allowed = _to_integer_grid(quantizer.grid)
    constant = _quantize_constant(quantizer, grid, allowed, view)
    if constant is not None or quantizer.operator.block_axis is not None:
        return constant  # without one, elements of blocks depend on their neighbors
    return _quantize_activation(quantizer, grid, allowed, view)


def infer_multi_threshold(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the output of a MultiThreshold: the values of all its counts."""
    values = read_staircase(node).values
    result = recover_codes(values[:, None], -1) if view.can_afford(values.size) else None
    return None if result is None else replace(result, integers=None)


def _infer_stored_codes(own: OwnQuantizer, view: View) -> AbstractValue | None:
    """Return the values of constant codes that a dequantizer reads; None for computed codes."""
    if not own.constant or not own.static or own.x is None:
        return None
    codes = read_array(own.x)
    scale, zeropt = own.get_parameter(Role.SCALE), own.get_parameter(Role.ZERO_POINT)
    if scale is None or codes.dtype.name not in own.inputs[0].domain.dtypes:
        return None
    zeropt = np.zeros_like(scale) if zeropt is None else zeropt
    usual = np.isfinite(scale).all() and (scale > 0).all() and (np.abs(zeropt) < EXACT).all()
    if not usual:
        return _quantize_constant(own, None, None, view)
    limits, attributes = np.iinfo(codes.dtype), dict(own.attributes)
    try:
        placed = [
            own.operator.place(np.asarray(parameter, np.float32), codes, role, attributes)
            for role, parameter in ((Role.SCALE, scale), (Role.ZERO_POINT, zeropt))
        ]
    except ValueError:  # reported with its parameters
        return None
    grid = IntegerGrid(placed[0], placed[1], range(limits.min, limits.max + 1))
    return _quantize_constant(own, grid, grid.codes, view)


def _to_integer_grid(
    grid: Grid | None,
) -> tuple[IntegerGrid | None, range | frozenset[int] | None]:
    """Return the grid in integers, and the integers that occur.

    The numbers of a small floating-point format are integers times its smallest number.
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


def _quantize_constant(
    own: OwnQuantizer,
    grid: IntegerGrid | None,
    allowed: range | frozenset[int] | None,
    view: View,
) -> AbstractValue | None:
    arrays = [None if value is None else view.get_array(value) for value in own.node.inputs]
    x = arrays[0] if arrays else None
    if x is None or not view.can_afford(x.size):
        return None
    try:
        values = evaluate_operator(own.node, own.operator, arrays)
    except ModelError:  # reported with its parameters
        return None
    if values.dtype != np.float32:
        return None
    coded = None if grid is None or allowed is None else encode_constant(values, grid, allowed)
    if coded is None:
        view.store(own.node.outputs[0], values)
    return coded or from_constant(values)


def _quantize_activation(
    own: OwnQuantizer,
    grid: IntegerGrid | None,
    allowed: range | frozenset[int] | None,
    view: View,
) -> AbstractValue | None:
    value = own.node.inputs[0]
    x = view.get_abstract(value) or make_unknown(value)
    aligned = _align_parameters([view.get_array(value) for value in own.node.inputs[1:]])
    if aligned is None:
        return _make_element_grid(grid, allowed, nan=x.nan)
    axis, arrays = aligned
    key = _make_key(own, x, axis, arrays)
    if key is None or key not in view.quantized:
        made = _quantize_points(own, grid, allowed, x, axis, arrays)
        if key is None:
            return made
        view.quantized[key] = made
    return view.quantized[key]


def _make_key(
    own: OwnQuantizer, x: AbstractValue, axis: int | None, arrays: Sequence[Array | None]
) -> tuple[object, ...] | None:
    """Return a key that calls with equal results share: networks repeat their quantizers."""
    described = x.key
    if described is None or any(
        array is not None and array.size > _MOST_IN_KEY for array in arrays
    ):
        return None
    parameters = tuple(
        None if array is None else (array.dtype, array.tobytes()) for array in arrays
    )
    attributes = tuple(sorted(own.attributes.items()))
    return own.operator.name, axis, parameters, attributes, described


def _quantize_points(
    own: OwnQuantizer,
    grid: IntegerGrid | None,
    allowed: range | frozenset[int] | None,
    x: AbstractValue,
    axis: int | None,
    arrays: Sequence[Array | None],
) -> AbstractValue | None:
    """Return the quantized values that can occur, or their bounds."""
    points = list_points(x, axis, *(array for array in arrays if array is not None))
    channels = check_channels(*(array for array in arrays if array is not None))

    def function(values: Array) -> Array:
        shape = np.broadcast_shapes(values.shape, (channels,))
        spread = np.ascontiguousarray(np.broadcast_to(values, shape))
        return evaluate_operator(own.node, own.operator, [spread, *arrays])

    results = function(points.values)
    keeps = x.nan and bool(np.isnan(function(np.full((1, 1), np.nan, np.float32))).any())
    if grid is not None:
        made = _encode_results(results, points, grid, allowed, nan=keeps)
        if made is not None:
            return made
    plain = map_points(points, lambda values: results, (), nan=keeps)
    return replace(plain, exponent=_find_exponent(own.grid)) if grid is None else plain


def _find_exponent(grid: Grid | None) -> int | None:
    """Return the exponent that the values of a floating-point format are multiples of."""
    if not isinstance(grid, FloatGrid) or not np.isfinite(grid.scale).all():
        return None
    exponent = find_exponent(np.asarray(grid.format.smallest_subnormal)) + find_exponent(grid.scale)
    return max(LOWEST_EXPONENT, exponent)


def _encode_results(
    results: Array,
    points: Points,
    grid: IntegerGrid,
    allowed: range | frozenset[int] | None,
    *,
    nan: bool,
) -> AbstractValue | None:
    layout = grid.channels
    if layout is None:
        return None
    occur = np.broadcast_to(points.occur, results.shape)
    if np.isnan(results[occur]).any():
        return _make_whole_grid(grid, allowed, nan=True)
    axis = points.axis if points.axis is not None else layout.axis
    result = regrid(results, occur, layout.scale, layout.zeropt, axis)
    if result is None or result.codes is None:
        return None
    codes = replace(result.codes, allowed=allowed)
    if not points.every:
        among = None if allowed is None or isinstance(allowed, range) else allowed
        codes = replace(codes, step=grid.codes.step, members=among)
    return replace(result, codes=codes, nan=nan)


def _make_whole_grid(
    grid: IntegerGrid, allowed: range | frozenset[int] | None, *, nan: bool
) -> AbstractValue | None:
    """Return all values of a grid."""
    layout = grid.channels
    if layout is None or layout.scale.size > MOST_CHANNELS:
        return None
    lowest, highest = (np.asarray(bound, np.int64) for bound in (grid.lowest, grid.highest))
    members = None if allowed is None or isinstance(allowed, range) else allowed
    step = grid.codes.step
    codes = CodeRanges(layout.scale, layout.zeropt, lowest, highest, step, members, allowed)
    return from_codes(codes, layout.axis, nan=nan)


def _make_element_grid(
    grid: IntegerGrid | None, allowed: range | frozenset[int] | None, *, nan: bool
) -> AbstractValue | None:
    """Return a grid with a scale per element, without channels."""
    if grid is None or not 0 < grid.scale.size <= 2**16 or not 0 < grid.zeropt.size <= 2**16:
        return None
    try:
        scale, zeropt = np.broadcast_arrays(grid.scale, grid.zeropt)
    except ValueError:
        raise Mismatch("scales and zero-points have other shapes") from None
    lowest, highest = (np.asarray(bound, np.int64) for bound in (grid.lowest, grid.highest))
    flat = scale.reshape(-1), zeropt.reshape(-1)
    codes = CodeRanges(*flat, lowest, highest, grid.codes.step, allowed=allowed)
    result = from_codes(codes, -1, nan=nan)
    return None if result is None else result.merge_channels()


def _align_parameters(
    arrays: Sequence[Array | None],
) -> tuple[int | None, list[Array | None]] | None:
    """Return parameters as numbers or per channel, and the axis; None if several axes vary."""
    axes, flat = set(), []
    for array in arrays:
        layout = None if array is None else find_constant_channels(array)
        if array is not None and layout is None:
            return None
        flat.append(None if layout is None else layout[1])
        axes.add(None if layout is None else layout[0])
    axes.discard(None)
    if len(axes) > 1:
        return None
    return next(iter(axes), None), flat


def _infer_linear(node: ir.Node, view: View, hinted: Grid | None) -> AbstractValue | None:
    """Return the output of a node of ONNX's pair.

    `hinted` is its grid, narrowed by Clips and metadata.
    """
    source = get_input(node, 0)
    if source is None:
        return None
    try:
        if is_quantize(node):
            return _infer_quantize_linear(node, view)
        grid = read_scaling(node, get_dtype(source)).grid
    except Inexpressible:
        return _infer_stored(node, source, None, view)
    if isinstance(grid, FloatGrid):
        return _infer_stored(node, source, grid, view)
    codes, layout = view.get_abstract(source), grid.channels
    if not isinstance(grid, IntegerGrid) or layout is None:
        return None
    if codes is None or codes.codes is None:
        return _make_whole_grid(grid, grid.codes, nan=False)
    if codes.integers is not None and view.can_afford(codes.integers.size):
        allowed = hinted.codes if isinstance(hinted, IntegerGrid) else grid.codes
        return from_integers(codes.integers, layout.scale, layout.zeropt, layout.axis, allowed)
    if layout.axis is not None and codes.axis not in (None, layout.axis):
        codes = codes.merge_channels()
    if codes.codes is None:
        return None
    axis = layout.axis if codes.axis is None else codes.axis
    return from_codes(replace(codes.codes, scale=layout.scale, zeropt=layout.zeropt), axis)


def _infer_stored(
    node: ir.Node, source: ir.Value, grid: FloatGrid | None, view: View
) -> AbstractValue | None:
    """Return a constant whose codes are floats, or have a scale per block; None otherwise."""
    if not is_constant(source) or not view.can_afford(read_array(source).size):
        return None
    values = dequantize_constant(node)
    if values is None or values.dtype != np.float32:
        return None
    integers, allowed = _to_integer_grid(grid)
    coded = None
    if integers is not None and allowed is not None:
        coded = encode_constant(values, integers, allowed)
    if coded is None:
        view.store(node.outputs[0], values)
    return coded or from_constant(values)


def _infer_quantize_linear(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the integers of a QuantizeLinear."""
    scaling = read_scaling(node)
    grid, layout = scaling.grid, scaling.layout
    if not isinstance(grid, IntegerGrid):
        return None
    x = view.get_abstract(node.inputs[0]) or make_unknown(node.inputs[0])
    points = list_points(x, layout.axis, layout.scale, layout.zeropt)

    def function(values: Array) -> Array:
        codes = np.rint(values / layout.scale).astype(np.float64) + layout.zeropt
        return np.clip(codes, grid.lowest, grid.highest).astype(np.float32)

    result = map_points(points, function, [(_ONE, _ZERO)], nan=False)
    if result.codes is None and not result.infinite:
        ends = result.lowest.astype(np.int64), result.highest.astype(np.int64)
        result = from_codes(CodeRanges(_ONE, _ZERO, *ends), result.axis) or result
    # The code of NaN depends on the runtime.
    if x.nan or result.nan or result.codes is None:
        result = (
            _make_whole_grid(IntegerGrid(_ONE, _ZERO, grid.codes), grid.codes, nan=False) or result
        )
    if result.codes is None:
        return result
    return replace(result, codes=replace(result.codes, allowed=grid.codes))
