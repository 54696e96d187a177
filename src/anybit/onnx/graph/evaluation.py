# SPDX-License-Identifier: Apache-2.0
"""Evaluate one node of ours whose inputs are known, as a session would."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.names import described
from anybit.onnx.operators.registry import keywords_of
from anybit.ops import Operator

Arrays: TypeAlias = Sequence[Array | None]


def evaluate_operator(node: ir.Node, operator: Operator, arrays: Arrays) -> Array:
    """The result of one of our operators, from its own function. The node must be normalised.

    Raises:
        ModelError: What the function refuses, with the node's name.
    """
    try:
        return np.asarray(operator.function(*arrays, **keywords_of(node, operator)))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{described(node)}: {error}") from error
