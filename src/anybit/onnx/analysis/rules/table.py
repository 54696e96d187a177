# SPDX-License-Identifier: Apache-2.0
"""The rule of each operator."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.rules import elementwise, joins, moves, pools
from anybit.onnx.analysis.rules.arithmetic import infer_arithmetic
from anybit.onnx.analysis.rules.functions import FUNCTIONS, infer_smooth, infer_softmax
from anybit.onnx.analysis.rules.normalization import infer_batch_normalization
from anybit.onnx.analysis.rules.quantizers import infer_multi_threshold, infer_quantizer
from anybit.onnx.analysis.view import View
from anybit.onnx.graph.layout import is_channels_last
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize

AbstractOutputs: TypeAlias = AbstractValue | Sequence[AbstractValue | None] | None
Rule: TypeAlias = Callable[[ir.Node, View], AbstractOutputs]
"""The abstract value of the first output, or of each."""

RULES: dict[str, Rule] = {
    "Abs": elementwise.make_rule(np.abs),
    "Add": infer_arithmetic,
    "AveragePool": pools.infer_average_pool,
    "BatchNormalization": infer_batch_normalization,
    "Cast": elementwise.infer_cast,
    "Ceil": elementwise.make_rule(np.ceil),
    "Clip": elementwise.infer_clip,
    "Concat": joins.infer_concat,
    "DepthToSpace": moves.infer_mixing_move,
    "Div": infer_arithmetic,
    "Dropout": moves.infer_identity,
    "Expand": moves.infer_channelwise_move,
    "Flatten": moves.infer_reshape,
    "Floor": elementwise.make_rule(np.floor),
    "Gather": joins.infer_gather,
    "GlobalAveragePool": pools.infer_global_average_pool,
    "GlobalMaxPool": moves.infer_max_pool,
    "Identity": moves.infer_identity,
    "LeakyRelu": elementwise.infer_leaky_relu,
    "Max": joins.infer_min_max,
    "MaxPool": moves.infer_max_pool,
    "Min": joins.infer_min_max,
    "Mul": infer_arithmetic,
    "Neg": elementwise.infer_neg,
    "PRelu": elementwise.infer_prelu,
    "Pad": joins.infer_pad,
    "ReduceMax": pools.infer_reduction,
    "ReduceMean": pools.infer_reduction,
    "ReduceMin": pools.infer_reduction,
    "ReduceSum": pools.infer_reduction,
    "Relu": elementwise.infer_relu,
    "Reshape": moves.infer_reshape,
    "Resize": joins.infer_resize,
    "Round": elementwise.make_rule(np.rint),
    "Sign": elementwise.make_rule(np.sign),
    "Slice": joins.infer_slice,
    "Softmax": infer_softmax,
    "SpaceToDepth": moves.infer_mixing_move,
    "Split": joins.infer_split,
    "Squeeze": moves.infer_reshape,
    "Sub": infer_arithmetic,
    "ThresholdedRelu": elementwise.infer_thresholded_relu,
    "Tile": moves.infer_mixing_move,
    "Transpose": moves.infer_transpose,
    "Unsqueeze": moves.infer_reshape,
    "Upsample": joins.infer_resize,
    "Where": joins.infer_where,
    **dict.fromkeys(FUNCTIONS, infer_smooth),
}


def find_rule(node: ir.Node) -> Rule | None:
    """Return the rule of an operator that is not MatMul-like; None without one."""
    if is_quantize(node) or is_dequantize(node) or find_versions(node.domain, node.op_type):
        return infer_quantizer
    if is_multi_threshold(node):
        return infer_multi_threshold
    if is_channels_last(node) and node.op_type == "MaxPool":
        return moves.infer_max_pool_channels_last
    return None if node.domain else RULES.get(node.op_type)
