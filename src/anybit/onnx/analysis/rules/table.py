# SPDX-License-Identifier: Apache-2.0
"""Which rule is for which operator."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from anybit.onnx.analysis.carriers import Carrier
from anybit.onnx.analysis.rules.elementwise import relu
from anybit.onnx.analysis.rules.moves import (
    identity,
    kept,
    moved,
    pooled,
    reshaped,
    transposed,
)
from anybit.onnx.analysis.rules.quantizers import quantized
from anybit.onnx.analysis.view import View
from anybit.onnx.operators.registry import versions_of
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize

Found: TypeAlias = Carrier | Sequence[Carrier | None] | None
Rule: TypeAlias = Callable[[ir.Node, View], Found]
"""What is known of the first output, or of each."""

RULES: dict[str, Rule] = {
    "DepthToSpace": moved,
    "Dropout": identity,
    "Expand": kept,
    "Flatten": reshaped,
    "Gather": moved,
    "GlobalMaxPool": pooled,
    "Identity": identity,
    "MaxPool": pooled,
    "ReduceMax": moved,
    "Relu": relu,
    "Reshape": reshaped,
    "Slice": moved,
    "SpaceToDepth": moved,
    "Squeeze": reshaped,
    "Tile": moved,
    "Transpose": transposed,
    "Unsqueeze": reshaped,
}


def rule_of(node: ir.Node) -> Rule | None:
    """The rule of an operator that is no product; None if nothing is known of it."""
    if is_quantize(node) or is_dequantize(node) or versions_of(node.domain, node.op_type):
        return quantized
    return None if node.domain else RULES.get(node.op_type)
