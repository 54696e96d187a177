# SPDX-License-Identifier: Apache-2.0
"""Fences that keep runtimes from fusing or moving quantizer pairs."""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_graph, require_input
from anybit.onnx.qdq.before_quantize import find_sign_source
from anybit.onnx.quantizers.metadata import FENCE_KEY
from anybit.onnx.quantizers.nodes import Scaling, get_dtype, is_quantize, read_scaling

_FLOAT = ir.DataType.FLOAT


class FencePairs(InPlacePass):
    """Insertion of a Min without effect after a DequantizeLinear, or before its pair.

    With `before`, nodes may also be QuantizeLinear.

    The bound is the largest value of the codes, so no value changes. After DequantizeLinear, the
    Min hides it from the following node, so the two are not fused. Before QuantizeLinear, it keeps
    runtimes from moving a quantizer with one scale: they do not move quantizers across Min, Max or
    the nodes of a sign.

    The nodes have constant parameters and float32 results. Running it twice changes nothing.
    """

    def __init__(self, nodes: Iterable[ir.Node], *, before: bool = False) -> None:
        self._nodes = tuple(nodes)
        self._before = before

    def call(self, model: ir.Model) -> PassResult:
        editor = Editor(model)
        fence = _fence_before if self._before else _fence_after
        modified = False
        for node in self._nodes:
            if node.graph is not None:
                modified |= fence(editor, node)
        return PassResult(model, modified)


def _fence_after(editor: Editor, node: ir.Node) -> bool:
    result, codes = node.outputs[0], require_input(node)
    if any(FENCE_KEY in reader.metadata_props for reader, _ in result.uses()):
        return False
    name = str(result.name)
    bound = _make_bound(editor, name, read_scaling(node, get_dtype(codes), blocks=True))
    fence = ir.Node("", "Min", [result, bound], name=editor.unique(f"{name}_fenced"))
    fence.metadata_props[FENCE_KEY] = "1"
    fenced = fence.outputs[0]
    fenced.type, fenced.shape = ir.TensorType(_FLOAT), result.shape and result.shape.copy()
    fenced.metadata_props.update(result.metadata_props)
    result.metadata_props.clear()
    require_graph(node).insert_after(node, fence)
    result.replace_all_uses_with(fenced, replace_graph_outputs=True)
    fence.replace_input_with(0, result)
    result.name, fenced.name = editor.unique(f"{name}_dequantized"), name
    return True


def _fence_before(editor: Editor, node: ir.Node) -> bool:
    quantize = node if is_quantize(node) else _find_quantizer(node)
    x = None if quantize is None else quantize.inputs[0]
    if quantize is None or x is None:
        return False
    scaling = read_scaling(quantize)  # signs have a bound of their own
    if scaling.layout.axis is not None:
        return False
    if _is_limited(x) or find_sign_source(quantize, scaling) is not None:
        return False
    name = str(quantize.outputs[0].name)
    bound = _make_bound(editor, name, scaling)
    limited = editor.insert(quantize, "Min", [x, bound], f"{name}_limited", like=x, dtype=_FLOAT)
    quantize.replace_input_with(0, limited)
    return True


def _make_bound(editor: Editor, owner: str, scaling: Scaling) -> ir.Value:
    largest = np.asarray(scaling.type.bound_values(scaling.layout))
    return editor.share_parameter(owner, "largest", largest, _FLOAT)


def _find_quantizer(node: ir.Node) -> ir.Node | None:
    """Return the QuantizeLinear whose codes a node reads, possibly through a Clip."""
    codes = node.inputs[0]
    producer = None if codes is None else codes.producer()
    if is_onnx_op(producer, "Clip"):
        codes = producer.inputs[0]
        producer = None if codes is None else codes.producer()
    return producer if is_quantize(producer) else None


def _is_limited(x: ir.Value) -> bool:
    """Return whether a value comes from a Min or Max that has an effect."""
    node = x.producer()
    if node is None or node.domain or node.op_type not in ("Max", "Min"):
        return False
    return any(value is not None and is_constant(value) for value in node.inputs)
