# SPDX-License-Identifier: Apache-2.0
"""The rule of each operator."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.rules import elementwise, joins, moves, pools
from anybit.onnx.analysis.rules.arithmetic import arithmetic
from anybit.onnx.analysis.rules.functions import FUNCTIONS, share, smooth
from anybit.onnx.analysis.rules.normalization import batch_normalization
from anybit.onnx.analysis.rules.quantizers import counted, quantized
from anybit.onnx.analysis.view import View
from anybit.onnx.graph.layout import is_channels_last
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import versions_of
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize

Found: TypeAlias = AbstractValue | Sequence[AbstractValue | None] | None
Rule: TypeAlias = Callable[[ir.Node, View], Found]
"""The abstract value of the first output, or of each."""

RULES: dict[str, Rule] = {
    "Abs": elementwise.simple(np.abs),
    "Add": arithmetic,
    "AveragePool": pools.average_pool,
    "BatchNormalization": batch_normalization,
    "Cast": elementwise.cast,
    "Ceil": elementwise.simple(np.ceil),
    "Clip": elementwise.clip,
    "Concat": joins.concatenated,
    "DepthToSpace": moves.moved,
    "Div": arithmetic,
    "Dropout": moves.identity,
    "Expand": moves.kept,
    "Flatten": moves.reshaped,
    "Floor": elementwise.simple(np.floor),
    "Gather": joins.gathered,
    "GlobalAveragePool": pools.global_average_pool,
    "GlobalMaxPool": moves.pooled,
    "Identity": moves.identity,
    "LeakyRelu": elementwise.leaky_relu,
    "Max": joins.extreme,
    "MaxPool": moves.pooled,
    "Min": joins.extreme,
    "Mul": arithmetic,
    "Neg": elementwise.negated,
    "PRelu": elementwise.prelu,
    "Pad": joins.padded,
    "ReduceMax": pools.reduced,
    "ReduceMean": pools.reduced,
    "ReduceMin": pools.reduced,
    "ReduceSum": pools.reduced,
    "Relu": elementwise.relu,
    "Reshape": moves.reshaped,
    "Resize": joins.resized,
    "Round": elementwise.simple(np.rint),
    "Sign": elementwise.simple(np.sign),
    "Slice": joins.sliced,
    "Softmax": share,
    "SpaceToDepth": moves.moved,
    "Split": joins.split,
    "Squeeze": moves.reshaped,
    "Sub": arithmetic,
    "ThresholdedRelu": elementwise.thresholded_relu,
    "Tile": moves.moved,
    "Transpose": moves.transposed,
    "Unsqueeze": moves.reshaped,
    "Upsample": joins.resized,
    "Where": joins.selected,
    **dict.fromkeys(FUNCTIONS, smooth),
}


def rule_of(node: ir.Node) -> Rule | None:
    """Return the rule of an operator that is not MatMul-like; None without one."""
    if is_quantize(node) or is_dequantize(node) or versions_of(node.domain, node.op_type):
        return quantized
    if is_multi_threshold(node):
        return counted
    if is_channels_last(node) and node.op_type == "MaxPool":
        return moves.pooled_channels_last
    return None if node.domain else RULES.get(node.op_type)
