# SPDX-License-Identifier: Apache-2.0
"""Products of codes with computed scales that a file stores as integer operators.

ONNX Runtime's dynamic quantization writes DynamicQuantizeLinear, MatMulInteger or ConvInteger, a
Cast of the sums to float32, and a Mul by both scales.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from anybit.compiler.dynamic_quantizers import DynamicQuantizer, ScaleFormula
from anybit.compiler.reason import Reason, Unsupported
from anybit.compiler.zero_weights import FittedWeights, fit_weights
from anybit.onnx.analysis.layouts import ProductLayout, make_weight_layout
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.shapes import get_named_sizes, get_proven_sizes, record_shape
from anybit.onnx.qdq.integer_layers import describe_integer_layer
from anybit.quant_types.layer_info import Guarantee, LayerInfo

_CODES = range(256)
_STEPS = 255.0
_KINDS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_RESULTS = 3  # of a DynamicQuantizeLinear
_MATRIX, _LEAST_CONV_RANK, _OPERANDS = 2, 3, 2
REPEATS = "anybit.repeats_rows"
"""Metadata of added nodes: float nodes that read them can read their inputs as well."""


@dataclass(frozen=True, eq=False)
class IntegerProduct:
    """A MatMulInteger or ConvInteger of codes with a computed scale.

    Attributes:
        product: The node with its weights, less their zero-points.
        quantizer: The DynamicQuantizeLinear before it; its scales lie once per row.
        cast: The Cast of its sums to float32.
        factors: The tensors by which nodes multiply the result, once per row.
        layer: Its layer.
    """

    product: ProductAnalysis
    quantizer: DynamicQuantizer
    cast: ir.Node
    factors: tuple[ir.Value, ...]
    layer: LayerInfo

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return self._layout.groups

    @cached_property
    def fitted(self) -> FittedWeights:
        """The weights in 8 bits, output channel x 1 x tap x input channel of the group.

        Raises:
            Unsupported: The zero-point needs too many channels.
        """
        assert self.product.codes is not None, "integer products have weights"
        split = self._layout.canonical(self.product.codes).swapaxes(2, 3)
        return fit_weights(split.reshape(-1, 1, *split.shape[2:]))

    @property
    def _layout(self) -> ProductLayout:
        assert self.product.layout is not None, "integer products have a layout"
        return self.product.layout

    @property
    def result(self) -> ir.Value:
        """The sums in float32."""
        return self.cast.outputs[0]


def find_integer_products(model: ir.Model) -> dict[ir.Node, IntegerProduct | Reason]:
    """Return the integer operators on dynamic codes, or why an operator stays as it is.

    Nodes are added, in place, that repeat scales and zero-points once per row, as programs read
    them.
    """
    finder = _Finder(model)
    nodes = [node for node in model.graph if is_onnx_op(node, *_KINDS)]
    products: dict[ir.Node, IntegerProduct | Reason] = {}
    for node in nodes:
        try:
            products[node] = finder.find(node)
        except Unsupported as error:
            products[node] = error.reason
    model.graph.sort()
    return products


class _Finder:
    """Integer operators of one model, and the nodes that repeat their scales."""

    def __init__(self, model: ir.Model) -> None:
        self._model, self._editor = model, Editor(model)
        self._quantizers: dict[ir.Node, DynamicQuantizer] = {}
        self._sizes: dict[tuple[object, int], ir.Value] = {}
        self._rows: dict[tuple[ir.Value, ir.Value], ir.Value] = {}

    def find(self, node: ir.Node) -> IntegerProduct:
        """Return the product of a node.

        Raises:
            Unsupported: Its codes have no computed scale, or its weights no integer kernel.
        """
        source, cast = _find_source(node), _find_cast(node)
        weights, layout = _read_weights(node)
        layer = describe_integer_layer(node, self._model)
        assert layer is not None, "integer operators are layers"
        quantizer = self._quantizers.get(source)
        if quantizer is None:
            quantizer = self._quantizers[source] = self._describe(source)
        factors = tuple(self._repeat_factors(cast, quantizer.x))
        product = ProductAnalysis(
            node=node,
            layout=layout,
            codes=weights,
            scale=np.ones((), np.float32),
            error=np.zeros(()),
            exact=True,
        )
        layer = replace(
            layer,
            guarantee=Guarantee.EXACT,
            reason="",
            integer=False,
            input_codes=(_CODES[0], _CODES[-1]),
            weight_codes=(int(weights.min()), int(weights.max())),
        )
        return IntegerProduct(product, quantizer, cast, factors, layer)

    def _describe(self, source: ir.Node) -> DynamicQuantizer:
        """Return a DynamicQuantizeLinear as a quantizer whose scales lie once per row.

        Raises:
            Unsupported: The rank of its input is unknown, or less than 2.
        """
        x = source.inputs[0]
        sizes = None if x is None else get_proven_sizes(x, self._model)
        if x is None or sizes is None or len(sizes) < _MATRIX:
            raise Unsupported("its input has an unknown rank, or no axis besides that of its rows")
        scale, zero = source.outputs[1:]
        floats = self._editor.insert(
            source,
            "Cast",
            [zero],
            f"{zero.name}_float",
            like=zero,
            dtype=ir.DataType.FLOAT,
            attributes=[ir.AttrInt64("to", ir.DataType.FLOAT)],
        )
        rows = [self._repeat(value, x, [1] * len(sizes)) for value in (scale, floats)]
        formula = ScaleFormula(asymmetric=True, axes=(), steps=_STEPS, least=0.0, most=np.inf)
        return DynamicQuantizer(
            x, rows[0], rows[1], _CODES, formula, frozenset({source}), rounds_first=True
        )

    def _repeat_factors(self, cast: ir.Node, x: ir.Value) -> Iterator[ir.Value]:
        """Repeat the factors of float32 sums once per row of x, if they are those of all rows."""
        y = cast.outputs[0]
        rank = len(get_proven_sizes(y, self._model) or ())
        for reader, place in y.uses():
            factor = get_input(reader, 1 - place) if len(reader.inputs) == _OPERANDS else None
            if not is_onnx_op(reader, "Mul") or factor is None:
                continue
            own = None if is_constant(factor) else get_proven_sizes(factor, self._model)
            numbers = [size for size in own or () if size is not None]
            sizes = [1] * (rank - len(numbers)) + numbers
            is_known = own is not None and len(numbers) == len(own)
            is_computed = factor.producer() is not None and factor is not y
            if is_known and is_computed and len(sizes) == rank and sizes[:1] == [1]:
                repeated = self._repeat(factor, x, sizes)
                reader.replace_input_with(1 - place, repeated)
                yield repeated

    def _repeat(self, value: ir.Value, x: ir.Value, sizes: Sequence[int]) -> ir.Value:
        """Return a tensor once for each row of x.

        Args:
            value: The tensor.
            x: The tensor with rows.
            sizes: Sizes of the tensor, with 1 for the rows.
        """
        if (value, x) in self._rows:
            return self._rows[value, x]
        producer = value.producer()
        assert producer is not None, "it is computed from x"
        assert x.shape is not None, "its rank is known"
        target = self._count_rows(x, len(sizes), producer)
        shape = ir.Shape([x.shape[0], *sizes[1:]])
        self._rows[value, x] = repeated = self._editor.insert(
            producer,
            "Expand",
            [value, target],
            f"{value.name}_of_rows",
            like=ir.Value(name=None, shape=shape),
            dtype=ir.DataType.FLOAT,
            metadata={REPEATS: "1"},
        )
        record_shape(repeated, shape)
        return repeated

    def _count_rows(self, x: ir.Value, rank: int, before: ir.Node) -> ir.Value:
        """Return the number of rows of x, and ones as the sizes of further axes."""
        first = (get_named_sizes(x, self._model) or [None])[0]
        if isinstance(first, int):
            sizes = np.array([first, *[1] * (rank - 1)], np.int64)
            return self._editor.share_constant("sizes", "rows", sizes)
        key = first or x, rank
        if key not in self._sizes:
            self._sizes[key] = self._compute_rows(x, rank, before)
        return self._sizes[key]

    def _compute_rows(self, x: ir.Value, rank: int, before: ir.Node) -> ir.Value:
        """Insert nodes that compute the number of rows of x, followed by ones."""
        insert, nowhere, int64 = self._editor.insert, ir.Value(name=None), ir.DataType.INT64
        name = f"{x.name}_rows"
        shape = insert(before, "Shape", [x], name, like=nowhere, dtype=int64)
        zero = self._editor.share_constant("first", "first", np.zeros(1, np.int64))
        rows = insert(before, "Gather", [shape, zero], name, like=nowhere, dtype=int64)
        ones = self._editor.share_constant("ones", "ones", np.ones(rank - 1, np.int64))
        axis = [ir.AttrInt64("axis", 0)]
        return insert(
            before, "Concat", [rows, ones], name, like=nowhere, dtype=int64, attributes=axis
        )


def _find_source(node: ir.Node) -> ir.Node:
    """Return the DynamicQuantizeLinear that gives the codes and the zero-point of a node.

    Raises:
        Unsupported: Another node gives them.
    """
    codes, zero = get_input(node, 0), get_input(node, 2)
    source = None if codes is None else codes.producer()
    if not is_onnx_op(source, "DynamicQuantizeLinear"):
        raise Unsupported("its first input is not that of a DynamicQuantizeLinear")
    if len(source.outputs) != _RESULTS or zero is not source.outputs[-1]:
        raise Unsupported("its zero-point is not that of its codes")
    if source.inputs[0] is None or source.inputs[0].dtype != ir.DataType.FLOAT:
        raise Unsupported("its DynamicQuantizeLinear does not read float32")
    return source


def _find_cast(node: ir.Node) -> ir.Node:
    """Return the only reader of the sums, a Cast to float32.

    Raises:
        Unsupported: There are other readers.
    """
    y = node.outputs[0]
    readers = [reader for reader, _ in y.uses()]
    if y.is_graph_output() or len(readers) != 1:
        raise Unsupported("other nodes than one Cast read its sums")
    (cast,) = readers
    is_cast = is_onnx_op(cast, "Cast")
    if not is_cast or get_attribute(cast, "to", 0) != ir.DataType.FLOAT:
        raise Unsupported("its sums are not cast to float32")
    return cast


def _read_weights(node: ir.Node) -> tuple[Array, ProductLayout]:
    """Return the weights less their zero-points, int32, and their layout.

    Raises:
        Unsupported: They are computed, are not 8-bit integers, or have another shape.
    """
    weight, zero = get_input(node, 1), get_input(node, 3)
    if weight is None or not is_constant(weight) or not (zero is None or is_constant(zero)):
        raise Unsupported("its weights are computed")
    codes = read_array(weight)
    zeros = np.zeros((), codes.dtype) if zero is None else read_array(zero)
    if codes.dtype not in (np.int8, np.uint8) or zeros.dtype != codes.dtype:
        raise Unsupported("its weights, or their zero-points, are not int8 or uint8")
    kind = _KINDS[node.op_type]
    fits = codes.ndim == _MATRIX if kind == "MatMul" else codes.ndim >= _LEAST_CONV_RANK
    if not fits or not codes.size:
        raise Unsupported(f"its weights have the shape {list(codes.shape)}")
    layout = make_weight_layout(kind, codes.ndim)
    axis = layout.weight_axis % codes.ndim
    if zeros.size not in (1, codes.shape[axis]) or zeros.size != max(zeros.shape, default=1):
        raise Unsupported("its weights do not have one zero-point, or one per output channel")
    shape = [1] * codes.ndim
    shape[axis] = zeros.size
    groups = get_attribute(node, "group", 1)
    return (
        codes.astype(np.int32) - zeros.astype(np.int32).reshape(shape),
        replace(layout, bias=None, groups=groups if kind == "Conv" else 1),
    )
