# SPDX-License-Identifier: Apache-2.0
"""Leading axes of dynamic sizes, merged around products of codes with computed scales.

A program works on rows of known sizes. Nodes that treat every position alike, such as those of
transformers on batch x time x channels, do the same on (batch x time) x channels.
"""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from anybit.compiler.dynamic_quantizers import find_dynamic_quantizer
from anybit.compiler.operators import find_constant_axes, is_matrix_product
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import SOURCE_NAME_KEY
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.reductions import get_reduced_axes
from anybit.onnx.graph.shapes import get_named_sizes
from anybit.onnx.passes import InferShapes
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize

ROWS = "anybit.rows"
"""The metadata key of the Reshapes, whose values follow."""
MERGED, RESTORED = "merged", "restored"

_POSITIONS = "anybit.positions"
"""The metadata key of the merged sizes of a value."""

_LEAST_RANK = 3
_FIRST_OPSET = 13
"""The first opset in which quantizers have axes that count from the back."""
_FIRST_WITH_ZEROS = 14
"""The first opset in which a Reshape can have sizes of 0."""


def flatten_rows(model: ir.Model) -> None:
    """Merge all axes but the last of nodes around products with computed scales, in place.

    Only axes of dynamic sizes are merged, and only where all nodes treat positions alike.
    """
    for node in model.graph:
        node.metadata_props.pop(ROWS, None)  # of a file
        for value in node.outputs:
            value.meta.pop(_POSITIONS, None)
    if model.graph.opset_imports.get("", 1) < _FIRST_OPSET:
        return
    pass_ = _Flattening(model)
    pass_.find_nodes()
    if pass_.rewrite():
        InferShapes()(model)


def get_merged_sizes(value: ir.Value) -> tuple[int | str, ...] | None:
    """Return the sizes whose product is the number of rows of a value of merged axes.

    Return None for other values, and where a size has no name.
    """
    sizes = value.meta.get(_POSITIONS)
    return sizes if isinstance(sizes, tuple) else None


class _Flattening:
    """Nodes that can work on merged axes, and the tensors that these begin with."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._opset = model.graph.opset_imports.get("", 1)
        self._constants: set[ir.Value] = set()
        self._anchors: dict[ir.Value, ir.Value] = {}
        self._nodes: list[ir.Node] = []
        self._seeds: set[ir.Node] = set()

    def find_nodes(self) -> None:
        """Find the nodes that treat positions alike, and the products among them."""
        alike: set[ir.Node] = set()
        quantized: set[ir.Value] = set()
        for node in self._model.graph:
            quantizer = find_dynamic_quantizer(node)
            if quantizer is None or not self._is_open(quantizer.x):
                continue
            last = len(quantizer.x.shape or ()) - 1
            if quantizer.formula.axes in ((last,), ()):
                alike |= quantizer.nodes
            quantized.add(node.outputs[0])
        for node in self._model.graph:
            if is_onnx_op(node, "DynamicQuantizeLinear") and self._is_open(node.outputs[0]):
                quantized.add(node.outputs[0])
                alike |= {node, *_find_casts(node.outputs[0])}
        for node in self._model.graph:
            if all(value is None or self._is_constant(value) for value in node.inputs):
                self._constants.update(node.outputs)
                continue
            if len(node.outputs) != 1 and node not in alike:
                continue
            anchor = self._find_anchor(node, is_alike=node in alike)
            if anchor is not None:
                self._anchors[node.outputs[0]] = anchor
                self._nodes.append(node)
                if is_matrix_product(node) and node.inputs[0] in quantized:
                    self._seeds.add(node)

    def rewrite(self) -> bool:
        """Let the nodes that are connected to products work on merged axes."""
        nodes = self._find_connected()
        if not nodes:
            return False
        editor = Editor(self._model)
        merged: dict[ir.Value, ir.Value] = {}
        inner = {node.outputs[0] for node in nodes}
        for y in inner:
            self._record_positions(y, self._anchors[y])
        for node in nodes:
            for place, value in enumerate(node.inputs):
                if value is not None and value not in inner:
                    node.replace_input_with(place, self._merge(value, node, merged, editor))
            _set_axis(node)
        for node in nodes:
            self._restore(node, set(nodes), editor)
        self._model.graph.sort()
        return True

    def _find_connected(self) -> list[ir.Node]:
        """Return the nodes that values connect to products, in the order of the graph."""
        inside, waiting, connected = set(self._nodes), [*self._seeds], set(self._seeds)
        while waiting:
            node = waiting.pop()
            producers = [value.producer() for value in node.inputs if value is not None]
            readers = [reader for reader, _ in node.outputs[0].uses()]
            for other in (*producers, *readers):
                if other is not None and other in inside and other not in connected:
                    connected.add(other)
                    waiting.append(other)
        return [node for node in self._nodes if node in connected]

    def _is_constant(self, value: ir.Value) -> bool:
        return is_constant(value) or value in self._constants

    def _is_open(self, value: ir.Value) -> bool:
        """Return whether a value has rows and positions of dynamic sizes, and known channels."""
        sizes = get_named_sizes(value, self._model)
        return (
            sizes is not None
            and len(sizes) >= _LEAST_RANK
            and isinstance(sizes[-1], int)
            and not all(isinstance(size, int) for size in sizes[1:])
        )

    def _find_anchor(self, node: ir.Node, *, is_alike: bool) -> ir.Value | None:
        """Return a tensor with the positions of a node that can work on merged axes."""
        inputs = [value for value in node.inputs if value is not None]
        varying = [v for v in inputs if not self._is_constant(v) and not self._is_one_row(v)]
        if not varying or not all(map(self._is_open, (*varying, node.outputs[0]))):
            return None
        anchors = [self._anchors.get(value, value) for value in varying]
        rank = len(node.outputs[0].shape or ())
        if any(self._get_rank(value) != rank for value in (*varying, *anchors)):
            return None
        ranks = [self._get_rank(value) for value in inputs]
        if any(other is None or other > rank for other in ranks):
            return None
        if not self._has_small_constants(node, rank):
            return None
        if not is_alike and not self._treats_positions_alike(node, rank):
            return None
        positions = [self._get_positions(anchor) for anchor in anchors]
        same = all(anchor is anchors[0] for anchor in anchors)
        if not same and (None in (positions[0] or (None,)) or len({*positions}) > 1):
            return None
        return anchors[0]

    def _is_single(self, value: ir.Value) -> bool:
        """Return whether a value has one element, as the scale of a whole tensor."""
        sizes = get_named_sizes(value, self._model)
        return sizes is not None and all(size == 1 for size in sizes)

    def _is_one_row(self, value: ir.Value) -> bool:
        """Return whether a value has one element, or one per channel."""
        return self._is_single(value) or self._get_rank(value) == 1

    def _get_rank(self, value: ir.Value) -> int | None:
        """Return the rank of a value; None if it is unknown."""
        sizes = get_named_sizes(value, self._model)
        if sizes is None and value in self._constants and value.shape is not None:
            return len(value.shape)
        return None if sizes is None else len(sizes)

    def _get_positions(self, value: ir.Value) -> tuple[int | str | None, ...] | None:
        sizes = get_named_sizes(value, self._model)
        return None if sizes is None else sizes[:-1]

    def _record_positions(self, value: ir.Value, anchor: ir.Value) -> None:
        """Record the sizes that are merged, for a value with the positions of another."""
        positions = self._get_positions(anchor)
        if positions is not None and None not in positions:
            value.meta[_POSITIONS] = positions

    def _treats_positions_alike(self, node: ir.Node, rank: int) -> bool:
        if is_matrix_product(node):
            weight = node.inputs[1]
            is_matrix = weight is not None and weight.shape is not None and len(weight.shape) == 2
            return is_matrix and self._is_constant(weight)  # type: ignore[arg-type]
        if is_onnx_op(node, "LayerNormalization"):
            return get_attribute(node, "axis", -1) % rank == rank - 1
        axes = find_constant_axes(node, rank, self._opset)
        return axes is not None and axes <= {rank - 1}

    def _has_small_constants(self, node: ir.Node, rank: int) -> bool:
        """Return whether constants have one row, and a reduction is one over the last axis.

        Constants can lose leading axes of size 1 if they are initializers.
        """
        constants = [v for v in node.inputs if v is not None and self._is_constant(v)]
        if _is_reduction(node):
            return get_reduced_axes(node, rank) == (rank - 1,)
        if is_matrix_product(node):
            return True
        return all(
            self._is_single(value)
            or (is_constant(value) and all(size == 1 for size in (value.shape or ())[:-1]))
            for value in constants
        )

    def _merge(
        self,
        value: ir.Value,
        before: ir.Node,
        merged: dict[ir.Value, ir.Value],
        editor: Editor,
    ) -> ir.Value:
        """Return a value of two axes for a node on merged axes."""
        rank = 0 if value.shape is None else len(value.shape)
        if is_constant(value):
            return self._merge_constant(value, before, editor)
        if rank < _LEAST_RANK:
            return value
        if value not in merged:
            size = 1 if self._is_single(value) else list(value.shape or ())[-1]
            target = editor.share_constant("shape", "rows_shape", np.array([-1, size], np.int64))
            merged[value] = editor.insert(
                before,
                "Reshape",
                [value, target],
                f"{value.name}_rows",
                like=ir.Value(name=None, shape=ir.Shape([None, size])),
                dtype=value.dtype or ir.DataType.FLOAT,
                metadata={ROWS: MERGED},
            )
            self._record_positions(merged[value], value)
        return merged[value]

    def _merge_constant(self, value: ir.Value, reader: ir.Node, editor: Editor) -> ir.Value:
        array = read_array(value)
        if _is_reduction(reader):
            return editor.share_constant("axes", "rows_axes", np.array([1], np.int64))
        if array.ndim < _LEAST_RANK:
            return value
        return editor.share_constant("operand", f"{value.name}_row", array.reshape(1, -1))

    def _restore(self, node: ir.Node, nodes: set[ir.Node], editor: Editor) -> None:
        """Give the result of a node its own axes for other readers."""
        y = node.outputs[0]
        sizes = list(y.shape or ())
        others = [(reader, place) for reader, place in y.uses() if reader not in nodes]
        is_output = y.is_graph_output()
        y.shape = ir.Shape([None, sizes[-1]])
        if not others and not is_output:
            return
        make = _Inserter(editor, node)
        shape = make("Shape", [self._anchors[y]], "shape")
        bounds = [editor.share_constant(n, n, np.array([b], np.int64)) for n, b in _BOUNDS.items()]
        positions = make("Slice", [shape, bounds[0], bounds[1], bounds[0]], "positions")
        channels = editor.share_constant("channels", "channels", np.array([sizes[-1]], np.int64))
        axis = [ir.AttrInt64("axis", 0)]
        target = make("Concat", [positions, channels], "shape", axis)
        zeros = [ir.AttrInt64("allowzero", 1)] if self._opset >= _FIRST_WITH_ZEROS else []
        restored = editor.insert(
            node,
            "Reshape",
            [y, target],
            f"{y.name}_restored",
            # Without names of sizes: ONNX Runtime would merge an Add of equal ones with a
            # LayerNormalization, which takes several times as long.
            like=ir.Value(name=None, shape=ir.Shape([*[None] * (len(sizes) - 1), sizes[-1]])),
            dtype=y.dtype or ir.DataType.FLOAT,
            attributes=zeros,
            metadata={ROWS: RESTORED},
        )
        for reader, place in others:
            reader.replace_input_with(place, restored)
        if is_output:
            outputs = self._model.graph.outputs
            name = y.name
            y.name = editor.unique(f"{name}_rows")
            y.metadata_props[SOURCE_NAME_KEY] = str(name)
            restored.name = name
            for place, value in enumerate(outputs):
                if value is y:
                    outputs[place] = restored


_BOUNDS = {"start": 0, "end": -1}


def _find_casts(codes: ir.Value) -> set[ir.Node]:
    """Return the nodes that cast the sums of codes to float32."""
    products = [reader for reader, _ in codes.uses() if reader.op_type == "MatMulInteger"]
    readers = [reader for node in products for reader, _ in node.outputs[0].uses()]
    return {reader for reader in readers if is_onnx_op(reader, "Cast")}


def _is_reduction(node: ir.Node) -> bool:
    return not node.domain and node.op_type.startswith("Reduce")


def _set_axis(node: ir.Node) -> None:
    """Let attributes name the last of two axes."""
    has_axis = is_quantize(node) or is_dequantize(node) or is_onnx_op(node, "LayerNormalization")
    if has_axis and "axis" in node.attributes:
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
    if _is_reduction(node) and "axes" in node.attributes:
        node.attributes["axes"] = ir.AttrInt64s("axes", [-1])


class _Inserter:
    """Insertion of nodes that compute sizes."""

    def __init__(self, editor: Editor, before: ir.Node) -> None:
        self._editor, self._before = editor, before

    def __call__(
        self,
        operator: str,
        inputs: Iterable[ir.Value],
        name: str,
        attributes: Iterable[ir.Attr] = (),
    ) -> ir.Value:
        return self._editor.insert(
            self._before,
            operator,
            [*inputs],
            name,
            like=ir.Value(name=None),
            dtype=ir.DataType.INT64,
            attributes=[*attributes],
        )
