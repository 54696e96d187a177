# SPDX-License-Identifier: Apache-2.0
"""Decomposition of QLinearConv and QLinearMatMul into float nodes between quantizers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.layouts import make_weight_layout
from anybit.onnx.analysis.sums import WeightParts
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, are_powers_of_two, is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.qdq.saturation import may_saturate_codes
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.report import ConversionStep

KEPT_REASON = "it computes with codes, and there is no exact form of it with quantizers"
_DYNAMIC_REASON = (
    "its scale is computed at run time, so products of floats round where its sums of codes do "
    "not; {}`anybit quantize` of the float model with --activations 'uint8 dynamic per-tensor' "
    "writes quantizers"
)
_COMPILED = "`anybit compile` takes it as it is, and "

_FLOAT = ir.DataType.FLOAT
_INTEGER_OPERATORS = {"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"}
# Operators of ONNX Runtime that read or write codes, except its own quantizer pair.
_CONTRIBUTED = re.compile(
    "QLinear.*|QOrdered.*|QGemm|QAttention|QMoE|QEmbedLayerNormalization|DynamicQuantize.*"
    "|MatMul(NBits|Bnb4|FpQ4|BlockQuantized).*|.*Integer(16|ToFloat)?|GatherBlockQuantized"
    "|GemmFloat8|(Dequantize|Quantize)(BFP|WithOrder)"
)

# Scales in this range leave room for the codes on both sides.
_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-50, 2.0**50
# float32 holds all integers up to this.
_LARGEST_SUM = 2**24

# Nodes between a quantizer and the operator that reads its codes.
_MOST_MOVES = 8

SATURATES = (
    "its sums are exact; ONNX Runtime saturates sums of two products of {} at 16 bits on x86-64 "
    "CPUs without VNNI, and may give other values there"
)


def is_integer_operator(node: ir.Node) -> bool:
    """Return whether a node computes with codes, except the quantizer pair."""
    return is_integer_name(node.domain, node.op_type)


def is_integer_name(domain: str, name: str) -> bool:
    """Return whether an operator computes with codes, except the quantizer pair."""
    if domain == "com.microsoft":
        return _CONTRIBUTED.fullmatch(name) is not None
    return not domain and (name in _INTEGER_OPERATORS or name.startswith("QLinear"))


def explain_kept(node: ir.Node) -> str:
    """Return why an operator on codes has no exact form with quantizers."""
    source: ir.Node | None = node
    for _ in range(_MOST_MOVES):
        if source is None or source.op_type.startswith("DynamicQuantize"):
            break
        codes = source.inputs[0] if source.inputs else None
        source = None if codes is None else codes.producer()
        if source is not None and not has_trait(source, OpTrait.DATA_MOVEMENT):
            break
    is_dynamic = source is not None and source.op_type.startswith("DynamicQuantize")
    if not is_dynamic:
        return KEPT_REASON
    is_recurrent = node.op_type == "DynamicQuantizeLSTM"
    return _DYNAMIC_REASON.format("" if is_recurrent else _COMPILED)


def split_operators(
    model: ir.Model, editor: Editor, *, allow_approximate: bool
) -> list[ConversionStep]:
    """Split nodes with constant parameters, one step each.

    Nodes that would have other values are split if that is allowed, and stay otherwise.
    """
    steps = []
    for node in list(model.graph.all_nodes()):
        parts = _read_parts(node)
        if parts is None:
            continue
        inexact = parts.inexact()
        if inexact and not allow_approximate:
            continue
        reasons = [f"differs where float32 rounds: {inexact}"] if inexact else []
        if parts.may_saturate():
            reasons.append(SATURATES.format(node.op_type))
        reason = "; ".join(reasons)
        name, operator = get_label(node), node.op_type
        _split(node, parts, editor)
        steps.append(ConversionStep(name, operator, parts.kind, reason, exact=not inexact))
    return steps


def explain_inexact_parts(node: ir.Node) -> str:
    """Return why float nodes in place of a node would have other values; "" if they are equal.

    Raises:
        Inexpressible: `split_operators` does not support the node.
    """
    parts = _read_parts(node)
    if parts is None:
        raise Inexpressible(KEPT_REASON)
    grouped = get_attribute(node, "group", 1) != 1  # other sums are added in parts
    return parts.explain_sum() if grouped else ""


@dataclass(frozen=True)
class _Parts:
    """The constants of a node.

    `kind` is the float operator, `axis` that of the output channels in the weights.
    """

    kind: str
    axis: int
    bias: Array | None
    x_scale: Array
    x_zeropt: Array
    weights: Array
    w_scale: Array
    w_zeropt: Array
    y_scale: Array
    y_zeropt: Array

    def usual(self) -> bool:
        """Return whether the ONNX standard has these types and shapes for 8 bits."""
        single = (self.x_scale, self.x_zeropt, self.y_scale, self.y_zeropt)
        codes = (self.x_zeropt, self.weights, self.y_zeropt)
        channels = self.weights.shape[self.axis]
        return (
            all(parameter.size == 1 for parameter in single)
            and all(
                parameter.size == 1 or parameter.shape == (channels,)
                for parameter in self._of_weights()
            )
            and all(parameter.dtype in (np.int8, np.uint8) for parameter in codes)
            and self.w_zeropt.dtype == self.weights.dtype
            and all(
                parameter.dtype == np.float32
                for parameter in (self.x_scale, self.w_scale, self.y_scale)
            )
            and (self.bias is None or self.bias.dtype == np.int32)
        )

    def inexact(self) -> str:
        """Return why float32 would compute another value; empty if it is equal."""
        scales = {"x": self.x_scale, "w": self.w_scale, "y": self.y_scale}
        for name, scale in scales.items():
            usable = are_powers_of_two(scale) & (scale >= _SMALLEST_SCALE)
            wrong = scale[~(usable & (scale <= _LARGEST_SCALE))]
            if wrong.size:
                return f"{name}_scale {wrong.flat[0]:g} is not a normal power of two"
        return self.explain_sum()

    def explain_sum(self) -> str:
        """Return that float32 rounds a sum of integers; empty if it does not."""
        largest = self._largest_sum()
        return f"a sum may reach {largest}, beyond 2^24" if largest > _LARGEST_SUM else ""

    def may_saturate(self) -> bool:
        """Return whether two products of a channel can exceed 16 bits: uint8 x, int8 weights."""
        if self.x_zeropt.dtype != np.uint8 or self.weights.dtype != np.int8:
            return False
        canonical = make_weight_layout(self.kind, self.weights.ndim).canonical(self.weights)
        channels = np.prod(canonical.shape[:2])
        return may_saturate_codes(canonical.reshape(channels, -1))

    def zeropts(self) -> Array:
        """Return the zero-points of the weights in the shape of their scales, as ONNX requires."""
        if self.w_scale.size == 1 and self.w_zeropt.size == 1:
            return self.w_zeropt.reshape(self.w_scale.shape)
        return np.broadcast_to(self.w_zeropt.reshape(-1), np.broadcast_shapes(*self._flat()))

    def scales(self) -> Array:
        return np.broadcast_to(self.w_scale, self.zeropts().shape)

    def _largest_sum(self) -> int:
        limits, zeropt = np.iinfo(self.x_zeropt.dtype), int(self.x_zeropt.flat[0])
        largest = max(limits.max - zeropt, zeropt - limits.min)
        shape = [1] * self.weights.ndim
        shape[self.axis] = -1
        codes = self.weights.astype(np.int64) - self.w_zeropt.astype(np.int64).reshape(shape)
        sums = WeightParts(
            make_weight_layout(self.kind, codes.ndim).canonical(codes)
        ).sum_magnitudes(np.asarray(largest))
        most = int(sums.max(initial=0))
        return most + (0 if self.bias is None else int(np.abs(self.bias.astype(np.int64)).max()))

    def _of_weights(self) -> tuple[Array, Array]:
        return self.w_scale, self.w_zeropt

    def _flat(self) -> list[tuple[int, ...]]:
        return [(parameter.size,) for parameter in self._of_weights()]


def _read_parts(node: ir.Node) -> _Parts | None:
    """Return the constants of a supported node with usual shapes; None otherwise."""
    kinds = {"QLinearConv": ("Conv", 9), "QLinearMatMul": ("MatMul", 8)}
    if node.domain or node.op_type not in kinds:
        return None
    kind, most = kinds[node.op_type]
    values = list(node.inputs)
    bias = values.pop(8) if len(values) == most == 9 else None
    constants = [value for value in values[1:] if value is not None and is_constant(value)]
    is_complete = len(values) == 8 and len(constants) == 7 and (bias is None or is_constant(bias))
    if not is_complete or values[0] is None or len(node.outputs) != 1:
        return None
    arrays = [read_array(value) for value in constants]
    rank = arrays[2].ndim
    if rank < (3 if kind == "Conv" else 2):
        return None
    last = None if bias is None else read_array(bias)
    if last is not None and last.size == 0:
        return None
    axis = 0 if kind == "Conv" else rank - 1
    parts = _Parts(kind, axis, last, *arrays)
    return parts if parts.usual() else None


def _split(node: ir.Node, parts: _Parts, editor: Editor) -> None:
    x, x_scale, x_zeropt, weights, _, _, y_scale, y_zeropt = node.inputs[:8]
    name = str(node.outputs[0].name or node.name)

    def insert(
        kind: str,
        inputs: list[ir.Value | None],
        suffix: str,
        dtype: ir.DataType = _FLOAT,
        attributes: Sequence[ir.Attr] = (),
    ) -> ir.Value:
        reads = inputs[0] if kind == "DequantizeLinear" else None
        return editor.insert(
            node,
            kind,
            inputs,
            f"{name}_{suffix}",
            like=reads or node.outputs[0],
            dtype=dtype,
            attributes=attributes,
        )

    def dequantized(codes: ir.Value | None, axis: int, **parameters: Array) -> ir.Value:
        suffix = next(iter(parameters))
        attributes = [ir.AttrInt64("axis", axis)] if parameters[suffix].size > 1 else []
        values = [
            editor.share_parameter(name, role, array, ir.DataType.from_numpy(array.dtype))
            for role, array in parameters.items()
        ]
        inputs = [codes, *values]
        return insert("DequantizeLinear", inputs, f"{suffix}d", attributes=attributes)

    scales = parts.scales()
    operands: list[ir.Value | None] = [
        insert("DequantizeLinear", [x, x_scale, x_zeropt], "x"),
        dequantized(weights, parts.axis, w_scale=scales, w_zero_point=parts.zeropts()),
    ]
    if parts.bias is not None:
        with np.errstate(all="ignore"):  # such scales are approximations anyway
            bias_scales = parts.x_scale.reshape(()) * scales
        operands.append(dequantized(node.inputs[8], 0, bias_scale=np.asarray(bias_scales)))
    attributes = list(node.attributes.values()) if parts.kind == "Conv" else []
    inner = insert(parts.kind, operands, "result", attributes=attributes)
    codes = ir.DataType.from_numpy(parts.y_zeropt.dtype)
    editor.replace(node, insert("QuantizeLinear", [inner, y_scale, y_zeropt], "codes", codes))
