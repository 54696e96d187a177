# SPDX-License-Identifier: Apache-2.0
"""Evaluation of single nodes with constant inputs, as in a session."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.cut import extract_subgraph
from anybit.onnx.graph.names import describe
from anybit.onnx.operators.registry import get_keywords
from anybit.onnx.runtime import FAILURES, evaluate
from anybit.ops import Operator

Operands: TypeAlias = Sequence[Array | None]


def evaluate_operator(node: ir.Node, operator: Operator, arrays: Operands) -> Array:
    """Return the output of an operator of this package for a normalized node.

    Raises:
        ModelError: The function refuses its inputs; the message names the node.
    """
    try:
        return np.asarray(operator.function(*arrays, **get_keywords(node, operator)))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{describe(node)}: {error}") from error


def evaluate_standard(node: ir.Node, arrays: Operands, opset: int, ir_version: int) -> Array | None:
    """Return the first output of a standard operator for other inputs; None if there is none.

    The runtime evaluates it instead of NumPy, because Pow, Exp and Log differ in the last bit.
    """
    imports = {node.domain: 1, "": opset}  # DequantizeLinear may be of the runtime's own domain
    header = ir.Model(ir.Graph([], [], nodes=[], opset_imports=imports), ir_version=ir_version)
    fragment = extract_subgraph(header, [node], node.outputs[:1])
    pairs = zip(node.inputs, arrays, strict=True)
    feeds = {str(value.name): array for value, array in pairs if value and array is not None}
    try:
        return evaluate(fragment, feeds).get(str(node.outputs[0].name))
    except FAILURES:
        return None
