# SPDX-License-Identifier: Apache-2.0
"""Quantizers whose scales, and perhaps zero-points, nodes compute from the tensor itself.

Only nodes are recognized after which a row with NaN or infinity becomes NaN: its scale is infinite.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.onnx.operators.registry import find_operator
from anybit.ops.int_quant import get_codes
from anybit.quant_types.grids import TensorGrid

_MOST_BITS = 8
_INPUTS = 4


@dataclass(frozen=True)
class ScaleFormula:
    """min(max(w, least) / steps, most), or infinity if w is infinite.

    Attributes:
        asymmetric: Whether w is max(x, 0) - min(x, 0), and not max|x|.
        axes: The axes over which it is computed, counted from the front; all if empty.
        steps, least, most: The constants.
    """

    asymmetric: bool
    axes: tuple[int, ...]
    steps: float
    least: float
    most: float


@dataclass(frozen=True, eq=False)
class DynamicQuantizer:
    """A quantizer with a computed scale.

    Attributes:
        x: Its input.
        scale: The scale.
        zero: The zero-point; None if it is 0.
        codes: The codes, zero-point included.
        formula: The formula of the scale.
        nodes: The nodes that compute scale and zero-point, and the quantizer.
        rounds_first: Whether x / scale is rounded before the zero-point is added.
    """

    x: ir.Value
    scale: ir.Value
    zero: ir.Value | None
    codes: range
    formula: ScaleFormula
    nodes: frozenset[ir.Node]
    rounds_first: bool = False

    @property
    def bits(self) -> int:
        """The bits that distinguish its codes."""
        return (len(self.codes) - 1).bit_length()

    @property
    def grid(self) -> TensorGrid:
        """The codes that can occur as a grid of the scale 1.

        After a Relu, codes without a zero-point are not negative: NaN has the code 0. The products
        of 7 bits are faster than those of 8.
        """
        lowest = 0 if self.zero is None and _is_rectified(self.x) else self.codes[0]
        return TensorGrid(1.0, lowest, 1, self.codes[-1] - lowest + 1)

    def computes_per_row(self, axis: int, rank: int) -> bool:
        """Return whether there is a scale per position or row, and channels along an axis."""
        last, every = (rank - 1,), tuple(range(1, rank))
        if rank <= 1:
            return False
        return self.formula.axes == every or (axis == rank - 1 and self.formula.axes == last)


def find_dynamic_quantizer(node: ir.Node) -> DynamicQuantizer | None:
    """Return the quantizer that a node completes; None for other nodes."""
    operator = find_operator(node)
    if operator is None or operator.onnx_name != "IntQuant" or len(node.inputs) != _INPUTS:
        return None
    x, scale, zero, width = node.inputs
    if x is None or x.shape is None or scale is None or zero is None or width is None:
        return None
    if get_attribute(node, "rounding_mode", "ROUND").upper() != "ROUND" or not is_constant(width):
        return None
    bits = read_array(width)
    if bits.size != 1 or not 1 <= bits.item() <= _MOST_BITS or is_constant(scale):
        return None
    signed, narrow = (bool(get_attribute(node, name, 0)) for name in ("signed", "narrow"))
    codes = get_codes(int(bits.item()), signed, narrow)
    walk = _Walk(x, {node})
    origin = _find_origin(scale)
    formula = walk.find_formula(origin)
    if formula is None or ((origin is not scale or walk.is_reshaped) and formula.axes):
        return None
    has_zero = not (is_constant(zero) and np.all(read_array(zero) == 0))
    if has_zero and not walk.is_zero_point(_find_origin(zero), origin, codes):
        return None
    return DynamicQuantizer(
        x, scale, zero if has_zero else None, codes, formula, frozenset(walk.nodes)
    )


def _is_rectified(value: ir.Value) -> bool:
    """Return whether a Relu computes all elements of a tensor, perhaps before they are moved."""
    keeps_sign = OpTrait.DATA_MOVEMENT | OpTrait.SELECTION
    node = value.producer()
    while node is not None and not has_trait(node, OpTrait.RECTIFIER):
        source = node.inputs[0] if has_trait(node, keeps_sign) else None
        node = None if source is None else source.producer()
    return node is not None


def _read_axes(node: ir.Node, axes: list[ir.Value], rank: int) -> tuple[int, ...] | None:
    """Return the axes of a reduction, ascending; none for all, None where they are computed."""
    if not axes:
        return tuple(sorted(axis % rank for axis in get_attribute(node, "axes", ())))
    if not is_constant(axes[0]):
        return None
    return tuple(sorted(int(axis) % rank for axis in read_array(axes[0])))


def _find_origin(value: ir.Value) -> ir.Value:
    """Return a number before it was repeated, or a tensor before a change of its shape."""
    while (node := value.producer()) is not None and node.inputs and node.inputs[0] is not None:
        if node.domain or node.op_type not in ("Expand", "Reshape"):
            break
        value = node.inputs[0]
    return value


@dataclass
class _Walk:
    """A walk from the scale of a quantizer back to its input.

    Attributes:
        x: The input.
        nodes: The nodes on the way.
        low: The lower end of the range, if the scale depends on it.
        is_reshaped: Whether the scale is that of the input before a Reshape.
    """

    x: ir.Value
    nodes: set[ir.Node]
    low: ir.Value | None = None
    is_reshaped: bool = False

    def find_formula(self, scale: ir.Value) -> ScaleFormula | None:
        """Return the formula of a scale; None if it is another one."""
        for isinf, width, finite in self._inputs(scale, "Where"):
            if [*self._inputs(isinf, "IsInf")] != [[width]] or not _detects_both_signs(isinf):
                return None
            for quotient, most in self._constants(finite, "Min"):
                for limited, steps in self._constants(quotient, "Div"):
                    for w, least in self._constants(limited, "Max"):
                        if w is width and all(0 < n < np.inf for n in (least, steps, most)):
                            return self._find_width(width, steps, least, most)
        return None

    def is_zero_point(self, zero: ir.Value, scale: ir.Value, codes: range) -> bool:
        """Return whether a value is clip(round(lowest - low / scale)) for the codes."""
        for rounded, *bounds in self._inputs(zero, "Clip"):
            if [_read_number(bound) for bound in bounds] != [codes[0], codes[-1]]:
                return False
            for (shifted,) in self._inputs(rounded, "Round"):
                for first, quotient in self._inputs(shifted, "Sub"):
                    operands = [*self._inputs(quotient, "Div")]
                    return _read_number(first) == codes[0] and operands == [[self.low, scale]]
        return False

    def _find_width(
        self, width: ir.Value, steps: float, least: float, most: float
    ) -> ScaleFormula | None:
        axes = self._find_axes(width, "ReduceMax", magnitudes=True)
        if axes is not None:
            return ScaleFormula(False, axes, steps, least, most)
        for high, low in self._inputs(width, "Sub"):
            for above, zero in self._constants(high, "Max"):
                for below, other in self._constants(low, "Min"):
                    axes = self._find_axes(above, "ReduceMax", magnitudes=False)
                    same = self._find_axes(below, "ReduceMin", magnitudes=False)
                    self.low = low
                    if zero == other == 0 and axes is not None and axes == same:
                        return ScaleFormula(True, axes, steps, least, most)
        return None

    def _find_axes(
        self, value: ir.Value, reduction: str, *, magnitudes: bool
    ) -> tuple[int, ...] | None:
        """Return the axes over which x is reduced, with infinity for NaN; None otherwise."""
        for marked, *axes in self._inputs(value, reduction):
            node = value.producer()
            if node is None or self.x.shape is None:
                return None
            if get_attribute(node, "noop_with_empty_axes", 0):
                return None
            self.is_reshaped |= _find_origin(marked) is not marked
            if not self._is_marked(_find_origin(marked), magnitudes=magnitudes):
                return None
            shape = self.x.shape if marked.shape is None else marked.shape
            reduced = _read_axes(node, axes, len(shape))
            every = reduced is not None and reduced in ((), tuple(range(len(shape))))
            if every:
                return ()
            return reduced if get_attribute(node, "keepdims", 1) else None
        return None

    def _is_marked(self, marked: ir.Value, *, magnitudes: bool) -> bool:
        for isnan, infinity, x in self._inputs(marked, "Where"):
            if _read_number(infinity) != np.inf or [*self._inputs(isnan, "IsNaN")] != [[x]]:
                return False
            if magnitudes:
                return any(self._is_input(inputs[0]) for inputs in self._inputs(x, "Abs"))
            return self._is_input(x)
        return False

    def _is_input(self, value: ir.Value) -> bool:
        self.is_reshaped |= value is not self.x
        return _find_origin(value) is _find_origin(self.x)

    def _inputs(self, value: ir.Value, operator: str) -> Iterator[list[ir.Value]]:
        """Yield the inputs of the node that computes a value if it is of an operator."""
        node = value.producer()
        if is_onnx_op(node, operator):
            self.nodes.add(node)
            yield [x for x in node.inputs if x is not None]

    def _constants(self, value: ir.Value, operator: str) -> Iterator[tuple[ir.Value, float]]:
        """Yield the other input and the constant of a node of an operator with two inputs."""
        for inputs in self._inputs(value, operator):
            numbers = [_read_number(x) for x in inputs]
            if len(inputs) != 2:
                return
            if numbers[1] is not None:
                yield inputs[0], numbers[1]
            elif numbers[0] is not None and operator != "Div":
                yield inputs[1], numbers[0]


def _detects_both_signs(isinf: ir.Value) -> bool:
    """Return whether an IsInf finds both infinities."""
    node = isinf.producer()
    signs = ("detect_positive", "detect_negative")
    return node is not None and all(get_attribute(node, name, 1) == 1 for name in signs)


def _read_number(value: ir.Value) -> float | None:
    """Return the number that a constant is; None for others."""
    if not is_constant(value):
        return None
    array = read_array(value)
    return float(array.item()) if array.size == 1 else None
