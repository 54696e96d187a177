# SPDX-License-Identifier: Apache-2.0
"""Dynamic sizes in place of those that a file fixes without a reason."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.onnx.graph.shapes import get_inferred_shape, is_inferred, iter_declarable
from anybit.onnx.graph.walk import get_inner_graphs, iter_nodes
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.report import ConversionReport
from anybit.text import join_names


class DynamicSizes(InPlacePass):
    """Replacement of declared sizes that do not follow from inputs by dynamic ones.

    They may hold for the data of an export only, such as the number of nonzero elements, and ONNX
    Runtime's optimizer uses them. Shapes are inferred. Declarations after operators that ONNX
    cannot infer stay.
    """

    def call(self, model: ir.Model) -> ConversionReport:
        unknown = _find_unreliable_values(model)
        declared = [value for value in iter_declarable(model) if is_inferred(value)]
        values = [value for value in declared if value not in unknown]
        if all(
            get_inferred_shape(value) is None for value in values
        ):  # the model cannot be inferred
            return ConversionReport(model, False)
        freed = [str(value.name) for value in values if _make_dynamic(value)]
        remark = f"sizes that depend on the data are dynamic, not fixed: {join_names(freed)}"
        return ConversionReport(model, bool(freed), remarks=(remark,) * bool(freed))


def _make_dynamic(value: ir.Value) -> bool:
    declared = value.shape
    if declared is None:
        return False
    inferred = get_inferred_shape(value)
    if inferred is None or len(inferred) != len(declared):
        inferred = ir.Shape([None] * len(declared))
    sizes = [
        size if isinstance(claimed, int) and not isinstance(size, int) else claimed
        for size, claimed in zip(inferred, declared, strict=True)
    ]
    value.shape = ir.Shape(sizes)
    return value.shape != declared


def _find_unreliable_values(model: ir.Model) -> set[ir.Value]:
    """Return the values computed, directly or not, by operators that inference does not know.

    If there are any, branches and loops may use their outputs.
    """
    nodes = list(iter_nodes(model.graph))
    values: set[ir.Value] = set()
    if all(map(_is_known, nodes)):
        return values
    for node in nodes:
        graphs = list(get_inner_graphs(node))
        if graphs or not _is_known(node) or any(value in values for value in node.inputs):
            values.update(node.outputs)
            values.update(value for graph in graphs for value in graph.inputs)
    return values


def _is_known(node: ir.Node) -> bool:
    ours = bool(find_versions(node.domain, node.op_type))
    return node.domain == "" or ours or is_multi_threshold(node)
