# SPDX-License-Identifier: Apache-2.0
"""Expansion of this package's operators into standard ones."""

from collections.abc import Container, Mapping
from functools import partial

import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.onnx.expansion.calls import Expansion, Expansions
from anybit.onnx.expansion.writer import Body
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.require import require_graph
from anybit.onnx.operators.registry import find_operators
from anybit.onnx.report import ConversionReport, ConversionStep


class Lower(InPlacePass):
    """Replacement of every operator of this package by standard nodes, in a normalized model.

    The nodes are the operations of the operator's reference, traced (see `expansion`), with
    constants folded. The results have the same values, including NaN and infinities; the sign of a
    zero may differ. Tensors keep their names.

    Computed parameters are not checked: for a fractional width, which the operator refuses, the
    standard nodes return an undefined result.

    Raises:
        ModelError: An operator refuses its parameters; a type or a rank is unknown.
    """

    def __init__(
        self,
        reasons: Mapping[str, str] | None = None,
        *,
        only: Container[str] | None = None,
    ) -> None:
        """Store reasons for lowering by output name, and the outputs to lower.

        With `only`, the nodes whose outputs have these names are replaced, and no others.
        """
        self._reasons = {} if reasons is None else reasons
        self._only = only

    def call(self, model: ir.Model) -> ConversionReport:
        steps = []
        editor, expansions = Editor(model), Expansions()
        nodes = find_operators(model)
        for node, operator in nodes:
            if self._only is not None and node.outputs[0].name not in self._only:
                continue
            step = ConversionStep(
                get_label(node),
                operator.onnx_name,
                "standard operators",
                self._reasons.get(str(node.outputs[0].name), ""),
            )
            expand(editor, node, expansions.expand(node, operator))
            steps.append(step)
        return ConversionReport(model, bool(steps), tuple(steps))


def expand(editor: Editor, node: ir.Node, expansion: Expansion) -> None:
    """Replace a node by nodes that compute its expression; its constants are initializers.

    Equal constants share an initializer.
    """
    constant = partial(editor.share_constant, "constant")
    body = Body(constant, editor.unique, str(node.outputs[0].name))
    for traced, value in zip(expansion.inputs, node.inputs, strict=True):
        if traced is not None and traced.value is not None and value is not None:
            body.bind(traced, value)
    new = body.write(expansion.result)
    if new.producer() not in body.nodes:  # a constant or an input, which has a name already
        new = body.append("Identity", [new], ir.DataType.from_numpy(expansion.result.dtype))
    require_graph(node).insert_before(node, body.nodes)
    editor.replace(node, new)
