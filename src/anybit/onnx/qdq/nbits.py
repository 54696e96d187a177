# SPDX-License-Identifier: Apache-2.0
"""Replacement of ONNX Runtime's MatMulNBits by a quantized weight and MatMul.

The operator computes A @ W^T + bias from codes that are packed along K, the lowest bits of a byte
first, with a scale and a zero-point per block: W = (code - zero_point) * scale. Read in ONNX
Runtime's operator schema; the weights were measured bit by bit with 1.20.1 (4 bits), 1.23.2 (4 and
8 bits), 1.26.0 and 1.32.0 (2, 4 and 8 bits).
"""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.walk import nodes_in
from anybit.onnx.qdq.lift_codes import computed
from anybit.onnx.qdq.lifting import insert_quantizer
from anybit.onnx.quantizers.grids import Inexpressible, Match, match
from anybit.onnx.quantizers.nodes import dtype_of
from anybit.onnx.report import Step
from anybit.ops.grids import IntegerGrid

_FLOAT, _FLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16
_ATTRIBUTES = {"K", "N", "bits", "block_size", "accuracy_level", "weight_prepacked"}
_A, _B, _SCALES, _ZEROPTS, _G_IDX, _BIAS = range(6)

# The first accuracy level that allows a runtime to compute with less than float32.
_ROUNDED = 2
_LEVELS = {2: "float16", 3: "bfloat16", 4: "int8"}
# The first opset whose Slice has inputs.
_SLICE_OPSET = 10
# What nodes need that stand in a model without standard operators.
_OPSET = 13


def is_nbits(node: ir.Node) -> bool:
    """Return whether a node is ONNX Runtime's MatMulNBits."""
    return (node.domain, node.op_type) == ("com.microsoft", "MatMulNBits")


@dataclass(frozen=True)
class Lifted:
    """Nodes that were replaced, one step each, and why others stay, by the name of their output."""

    steps: list[Step] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)

    def reason(self, node: ir.Node) -> str:
        """Return why a node stays; "" if it is not one of these."""
        return self.reasons.get(_result_name(node), "")


def lift_nbits(model: ir.Model, editor: Editor, *, allow_approximate: bool) -> Lifted:
    """Replace each MatMulNBits whose weight is constant by a quantizer and MatMul.

    The weight becomes float32 values of shape [blocks, block size, N], a quantizer with a scale and
    a zero-point of shape [blocks, 1, N], a Reshape and, where the last block is shorter, a Slice; a
    weight of one block is a matrix [K, N] with a scale per channel. The weights are the same bits
    as those of the operator. Its sums may be added in another order, as MatMul's may.

    Nodes that no quantizer stands for stay. So do those that compute with less than float32, or
    whose weights differ in the last bit, unless `allow_approximate`: other than QLinearConv, whose
    conversion is an error then, such a node runs wherever the original ran, and what else there is
    in the model can be converted without changing a value.

    Raises:
        ModelError: An attribute has another type than the operator's, or a tensor cannot be read.
    """
    lifted, writer = Lifted(), _Writer(model, editor)
    for node in list(nodes_in(model.graph)):
        if not is_nbits(node):
            continue
        try:
            packed = _read(node)
            difference = packed.difference
            if difference and not allow_approximate:
                raise Inexpressible(
                    f"MatMul would give other values: {difference}; --allow-approximate converts it"
                )
            name, action = label_of(node), writer.write(node, packed)
        except Inexpressible as reason:
            lifted.reasons[_result_name(node)] = str(reason)
            continue
        lifted.steps.append(
            Step(name, node.op_type, action, difference or _EXACT, exact=not difference)
        )
    return lifted


_EXACT = "the weights are the same bits; the runtime may add sums in another order"


def difference_of(node: ir.Node) -> str:
    """Return what the replacement of a MatMulNBits changes; "" if nothing.

    Sizes are compared, and no weight is computed.

    Raises:
        Inexpressible: It has no replacement.
        ModelError: An attribute has another type than the operator's.
    """
    return _read(node).difference


@dataclass(frozen=True)
class _Packed:
    """A node whose sizes fit one another.

    Attributes:
        k, n, block, bits: Sizes of the weight [K, N], of a block along K and of a code.
        dtype: The type of A, the scales, the bias and the result.
        difference: What changes, if anything does.
    """

    k: int
    n: int
    block: int
    bits: int
    dtype: ir.DataType
    difference: str

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    def weight(self, node: ir.Node) -> tuple[IntegerGrid, Array]:
        """Return the grid and the float32 values, [blocks, block, N]; [K, N] if there is one block.

        Blocks with negative scales have the mirrored codes; a scale of 0 becomes 1.
        """
        codes = unpacked(_array(node, _B), self.bits)  # [N, blocks, block]
        scale = _array(node, _SCALES).astype(np.float32).reshape(self.n, self.blocks, 1)
        if not np.all(np.isfinite(scale)):
            raise Inexpressible("a scale is not finite")
        zeropt = self._zeropts(node)
        with np.errstate(all="ignore"):  # infinite where float32 ends
            values = np.subtract(codes, zeropt, dtype=np.float32) * scale
        highest = 2**self.bits - 1
        zeropt = np.where(scale < 0, np.float32(highest) - zeropt, zeropt)
        scale = np.where(scale == 0, np.float32(1), np.abs(scale))
        codes_of_grid, half = range(highest + 1), 2 ** (self.bits - 1)
        if np.all(zeropt == half):
            zeropt, codes_of_grid = np.zeros((), np.float32), range(-half, half)
        elif np.all(zeropt == zeropt.flat[0]):
            zeropt = np.asarray(zeropt.flat[0])
        order = (1, 2, 0)
        if zeropt.ndim:
            zeropt = np.ascontiguousarray(zeropt.transpose(order))
        scale = np.ascontiguousarray(scale.transpose(order))
        values = np.ascontiguousarray(values.transpose(order))
        if self.blocks == 1:
            values, scale = values[0, : self.k], scale[0]
            zeropt = zeropt[0] if zeropt.ndim else zeropt
        return IntegerGrid(scale, zeropt, codes_of_grid), values

    def _zeropts(self, node: ir.Node) -> Array:
        """Return the zero-points in float32, [N, blocks, 1]."""
        if _input(node, _ZEROPTS) is None:
            return np.full((1, 1, 1), 2 ** (self.bits - 1), np.float32)
        zeropts = _array(node, _ZEROPTS)
        if zeropts.dtype == np.uint8:
            zeropts = unpacked(zeropts.reshape(self.n, -1), self.bits)[:, : self.blocks]
        return zeropts.astype(np.float32).reshape(self.n, self.blocks, 1)


def unpacked(packed: Array, bits: int) -> Array:
    """Return the codes of bytes, the lowest bits of each first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., np.newaxis] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def _read(node: ir.Node) -> _Packed:
    """Compare attributes and shapes of a node, before anything is allocated.

    Raises:
        Inexpressible: The node has to stay, for that reason.
    """
    unknown = sorted(set(node.attributes) - _ATTRIBUTES)
    if unknown:
        raise Inexpressible(f"its attribute {unknown[0]} is not known")
    if len(node.outputs) != 1 or _input(node, _A) is None:
        raise Inexpressible("it does not have one input A and one output")
    if _input(node, _G_IDX) is not None:
        raise Inexpressible("its channels are reordered by g_idx")
    if attribute_of(node, "weight_prepacked", 0):
        raise Inexpressible("its weight is packed for one kind of GPU (weight_prepacked)")
    k, n = attribute_of(node, "K", 0), attribute_of(node, "N", 0)
    bits, block = attribute_of(node, "bits", 4), attribute_of(node, "block_size", 0)
    if bits not in (2, 4, 8):
        raise Inexpressible(f"bits is {bits}; known are 2, 4 and 8")
    if block < 16 or block & (block - 1):
        raise Inexpressible(f"block_size is {block}, not a power of two from 16 on")
    if k < 1 or n < 1:
        raise Inexpressible(f"K is {k} and N is {n}, which are not sizes")
    for index, name in ((_B, "B"), (_SCALES, "its scales"), (_ZEROPTS, "its zero-points")):
        value = _input(node, index)
        if index != _ZEROPTS and value is None:
            raise Inexpressible(f"{name} is missing")
        if value is not None and not is_constant(value):
            verb = "is" if index == _B else "are"
            raise Inexpressible(f"{name} {verb} not constant")
    dtype = _check_types(node)
    packed = _Packed(k, n, block, bits, dtype, "; ".join(_differences(node, dtype)))
    _check_shapes(node, packed)
    return packed


def _check_types(node: ir.Node) -> ir.DataType:
    """Return the type that A, the scales and the bias share."""
    dtype = _dtype(node, _SCALES)
    if dtype not in (_FLOAT, _FLOAT16):
        raise Inexpressible(f"its scales are {_called(dtype)}, not float32 or float16")
    if _dtype(node, _B) != ir.DataType.UINT8:
        raise Inexpressible(f"B is {_called(_dtype(node, _B))}, not uint8")
    if _input(node, _ZEROPTS) is not None and _dtype(node, _ZEROPTS) not in (
        ir.DataType.UINT8,
        dtype,
    ):
        given = _called(_dtype(node, _ZEROPTS))
        raise Inexpressible(f"its zero-points are {given}, not uint8 or the type of A")
    for index, name in ((_A, "A"), (_BIAS, "its bias")):
        if _dtype(node, index) not in (None, dtype):
            given = _called(_dtype(node, index))
            raise Inexpressible(f"{name} is {given} and its scales are {_called(dtype)}")
    return dtype


def _check_shapes(node: ir.Node, packed: _Packed) -> None:
    n, blocks, bits = packed.n, packed.blocks, packed.bits
    whole = (n, blocks, packed.block * bits // 8)
    row = blocks if _dtype(node, _ZEROPTS) == packed.dtype else -(-blocks * bits // 8)
    shapes: list[tuple[int, str, list[tuple[int, ...]]]] = [
        (_B, "B", [whole]),
        (_SCALES, "scales", [(n, blocks), (n * blocks,)]),
        (_ZEROPTS, "zero_points", [(n, row), (n * row,)]),
    ]
    for index, name, expected in shapes:
        value = _input(node, index)
        given = None if value is None else _shape(value)
        if given is not None and given not in expected:
            raise Inexpressible(
                f"{name} has shape {list(given)}, but K = {packed.k}, N = {n}, {bits} bits and "
                f"blocks of {packed.block} give {list(expected[0])}"
            )
    a, bias = _input(node, _A), _input(node, _BIAS)
    size = a.shape[-1] if a is not None and a.shape is not None and len(a.shape) else packed.k
    if isinstance(size, int) and size != packed.k:
        raise Inexpressible(f"the last axis of A has {size} elements, but K is {packed.k}")
    if bias is not None:
        given = _shape(bias)
        if given is None or len(given) != 1 or given[0] not in (n, None):
            raise Inexpressible(f"its bias does not have the shape [{n}]")


def _differences(node: ir.Node, dtype: ir.DataType) -> list[str]:
    """List what float32 MatMul computes in another way than the operator."""
    found = []
    level = attribute_of(node, "accuracy_level", 0)
    if level >= _ROUNDED:
        rounded = f"its input to {_LEVELS[level]}" if level in _LEVELS else "its input"
        found.append(f"accuracy_level {level} lets a runtime round {rounded}")
    if dtype == _FLOAT16:
        found.append("the operator computes in float16")
    if _input(node, _ZEROPTS) is not None and _dtype(node, _ZEROPTS) == dtype:
        found.append("zero-points that are floats are subtracted with other roundings")
    return found


class _Writer:
    """Writes nodes of one model. Nodes that share a weight share what it becomes."""

    def __init__(self, model: ir.Model, editor: Editor) -> None:
        self._imports = model.graph.opset_imports
        self._editor = editor
        self._weights: dict[object, tuple[ir.Value, Match]] = {}

    def write(self, node: ir.Node, packed: _Packed) -> str:
        """Put the new nodes in the place of a node, and return what they are called.

        Raises:
            Inexpressible: No quantizer gives the weights from themselves.
        """
        weight, found = self._weight(node, packed)
        self._imports.setdefault("", _OPSET)
        result = self._insert(node, "MatMul", [self._float32(node, _A), weight], "product")
        product, name = result.producer(), node.name
        if _input(node, _BIAS) is not None:
            result = self._insert(node, "Add", [result, self._float32(node, _BIAS)], "sum")
        if packed.dtype != _FLOAT:
            result = self._cast(node, result, packed.dtype)
        self._editor.replace(node, result)
        if product is not None and name:
            product.name = name
        return f"{found.operator.onnx_name} and MatMul"

    def _weight(self, node: ir.Node, packed: _Packed) -> tuple[ir.Value, Match]:
        """Return the weight of shape [K, N], and its quantizer."""
        parts = tuple(_input(node, index) for index in (_B, _SCALES, _ZEROPTS))
        key = (*parts, packed, node.graph)
        if key not in self._weights:
            if packed.k % packed.block and packed.blocks > 1:
                opset = self._imports.get("", _OPSET)
                if opset < _SLICE_OPSET:
                    raise Inexpressible(
                        f"opset {opset} has no Slice with inputs: export with opset {_SLICE_OPSET}"
                    )
            grid, values = packed.weight(node)
            found = match(grid)
            if found is None or not np.array_equal(computed(found, values), values, equal_nan=True):
                raise Inexpressible("no quantizer has all of its weights")
            self._weights[key] = self._joined(node, packed, found, values), found
        return self._weights[key]

    def _joined(self, node: ir.Node, packed: _Packed, found: Match, values: Array) -> ir.Value:
        """Quantize the values and put their blocks behind one another."""
        packed_weight = _input(node, _B)
        assert packed_weight is not None, "checked before"
        name = str(packed_weight.name)
        source = self._editor.constant(f"{name}_values", ir.Tensor(values))
        weight = insert_quantizer(self._editor, node, found, source, name, like=source)
        if packed.blocks > 1:
            whole = (packed.blocks * packed.block, packed.n)
            weight = self._shaped(node, "Reshape", [weight, *self._integers(whole)], name, whole)
            if packed.k != whole[0]:
                bounds = self._integers((0,), (packed.k,), (0,))
                inputs, size = [weight, *bounds], (packed.k, packed.n)
                weight = self._shaped(node, "Slice", inputs, name, size)
        return weight

    def _shaped(
        self,
        node: ir.Node,
        kind: str,
        inputs: list[ir.Value],
        name: str,
        shape: tuple[int, ...],
    ) -> ir.Value:
        suffix = "joined" if kind == "Reshape" else "cut"
        result = self._editor.insert(
            node, kind, inputs, f"{name}_{suffix}", like=inputs[0], dtype=_FLOAT
        )
        result.shape = ir.Shape(shape)
        return result

    def _integers(self, *constants: tuple[int, ...]) -> list[ir.Value]:
        arrays = [np.array(each, np.int64) for each in constants]
        return [self._editor.shared_constant("sizes", "sizes", each) for each in arrays]

    def _float32(self, node: ir.Node, index: int) -> ir.Value:
        """Return an input, converted to float32 if it is not."""
        value = _input(node, index)
        assert value is not None, "checked before"
        if _dtype(node, _SCALES) == _FLOAT:
            return value
        return self._cast(node, value, _FLOAT)

    def _cast(self, node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        to = [ir.AttrInt64("to", dtype.value)]
        name = f"{value.name}_{_called(dtype)}"
        return self._editor.insert(
            node, "Cast", [value], name, like=value, dtype=dtype, attributes=to
        )

    def _insert(self, node: ir.Node, kind: str, inputs: list[ir.Value], suffix: str) -> ir.Value:
        result = node.outputs[0]
        name = f"{result.name}_{suffix}"
        return self._editor.insert(node, kind, inputs, name, like=result, dtype=_FLOAT)


def _result_name(node: ir.Node) -> str:
    return str(node.outputs[0].name) if node.outputs else ""


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _dtype(node: ir.Node, index: int) -> ir.DataType | None:
    value = _input(node, index)
    return None if value is None else dtype_of(value)


def _array(node: ir.Node, index: int) -> Array:
    value = _input(node, index)
    assert value is not None, "checked before"
    return array_of(value)


def _shape(value: ir.Value) -> tuple[int | None, ...] | None:
    """Return the sizes of a value, None for those that are not known; None if the rank is not."""
    if value.const_value is not None and is_constant(value):
        return tuple(value.const_value.shape.numpy())
    if value.shape is None:
        return None
    return tuple(size if isinstance(size, int) else None for size in value.shape)


def _called(dtype: ir.DataType | None) -> str:
    if dtype is None:
        return "of an unknown type"
    return "float32" if dtype == _FLOAT else dtype.name.lower()
