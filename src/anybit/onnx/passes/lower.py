# SPDX-License-Identifier: Apache-2.0
"""Expansion of this package's operators into standard ones."""

from collections.abc import Container, Mapping

import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.onnx.expansion.calls import Expansions
from anybit.onnx.expansion.placement import expand
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import label_of
from anybit.onnx.operators.registry import operators_in
from anybit.onnx.report import Report, Step


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

    def call(self, model: ir.Model) -> Report:
        steps = []
        editor, expansions = Editor(model), Expansions()
        nodes = operators_in(model)
        for node, operator in nodes:
            if self._only is not None and node.outputs[0].name not in self._only:
                continue
            step = Step(
                label_of(node),
                operator.onnx_name,
                "standard operators",
                self._reasons.get(str(node.outputs[0].name), ""),
            )
            expand(editor, node, expansions.of(node, operator))
            steps.append(step)
        return Report(model, bool(steps), tuple(steps))
