# SPDX-License-Identifier: Apache-2.0
"""Expand our operators into standard ones."""

from collections.abc import Container, Mapping

import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from anybit.errors import ModelError
from anybit.onnx.expansion.namespace import of_value
from anybit.onnx.expansion.placement import expand
from anybit.onnx.expansion.traced import Traced, known
from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import described, label_of
from anybit.onnx.operators.registry import keywords_of, operators_in
from anybit.onnx.report import Report, Step
from anybit.ops import Operator


class Lower(InPlacePass):
    """Replace every node of ours by standard nodes. The model is normalized.

    The nodes are those that the operator's reference performs, traced (see `expansion`). What
    follows from constants is computed now. The results have the same values, NaN and infinities
    included; the sign of a zero may differ. Tensors keep their names.

    Parameters that are known only at run time are not checked: where the operator would refuse a
    fractional width, the standard nodes compute something.

    Raises:
        ModelError: An operator refuses its parameters; a type or a rank is not known.
    """

    def __init__(
        self,
        reasons: Mapping[str, str] | None = None,
        *,
        only: Container[str] | None = None,
    ) -> None:
        """`reasons` tells, by the name of a node's output, why it is not expressed otherwise.

        With `only`, the nodes whose outputs have these names are replaced, and no others.
        """
        self._reasons = {} if reasons is None else reasons
        self._only = only

    def call(self, model: ir.Model) -> Report:
        steps = []
        editor = Editor(model)
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
            expand(editor, node, expanded(node, operator))
            steps.append(step)
        return Report(model, bool(steps), tuple(steps))


def expanded(node: ir.Node, operator: Operator) -> Traced:
    """What the node computes, as an expression of standard operators.

    Raises:
        ModelError: The operator refuses its parameters; a type or a rank is not known.
    """
    arguments = [None if value is None else _traced(node, value) for value in node.inputs]
    # A known x would send the function to the kernel, known parameters are checked as they are.
    arrays = [each if each is None or each.known is None else each.known for each in arguments[1:]]
    try:
        result = operator.reference(arguments[0], *arrays, **keywords_of(node, operator))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{described(node)}: {error}") from error
    return result if isinstance(result, Traced) else known(result)


def _traced(node: ir.Node, value: ir.Value) -> Traced:
    if is_constant(value):
        return known(array_of(value))
    if value.dtype in (None, ir.DataType.UNDEFINED):
        raise ModelError(
            f"{described(node)}: the type of {value.name!r} is not known; declare it in the model"
        )
    return of_value(value, value.dtype.numpy())
