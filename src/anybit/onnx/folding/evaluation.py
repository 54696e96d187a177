# SPDX-License-Identifier: Apache-2.0
"""Evaluate one node whose inputs are known, as a session would."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.cut import cut
from anybit.onnx.graph.names import described
from anybit.onnx.operators.registry import keywords_of
from anybit.onnx.runtime import FAILURES, evaluate
from anybit.ops import Operator

Arrays: TypeAlias = Sequence[Array | None]


def evaluate_operator(node: ir.Node, operator: Operator, arrays: Arrays) -> Array:
    """The result of one of our operators, from its own function. The node must be normalized.

    Raises:
        ModelError: What the function refuses, with the node's name.
    """
    try:
        return np.asarray(operator.function(*arrays, **keywords_of(node, operator)))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{described(node)}: {error}") from error


def evaluate_standard(node: ir.Node, arrays: Arrays, opset: int, ir_version: int) -> Array | None:
    """The first result of a standard operator for other inputs than its own; None if there is none.

    The runtime is asked, and not NumPy, because Pow, Exp and Log differ in their last bit.
    """
    header = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": opset}), ir_version=ir_version)
    fragment = cut(header, [node], node.outputs[:1])
    given = zip(node.inputs, arrays, strict=True)
    feeds = {str(value.name): array for value, array in given if value and array is not None}
    try:
        return evaluate(fragment, feeds).get(str(node.outputs[0].name))
    except FAILURES:
        return None
