# SPDX-License-Identifier: Apache-2.0
"""Quantizers beside what ONNX Runtime's optimizer joins with them, and nodes that do nothing."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.compose

BEFORE = {
    "relu": "r = Relu(n)",
    "relu6": "r = Clip(n, zero, six)",
    "clip": "r = Clip(n, minus, six)",
    "wide clip": "r = Clip(n, lowest, largest)",
    "clip of the input": "r = Clip(x, lowest, largest)",
    "relu and clip": "p = Relu(n) r = Clip(p, minus, six)",
    "quantizer": "r = qonnx.custom_op.general.IntQuant(n, other, zero, eight)",
    "unsigned quantizer": "r = qonnx.custom_op.general.IntQuant<signed=0>(n, other, zero, eight)",
    "quantizer and relu": "p = qonnx.custom_op.general.IntQuant<signed=0>(n, other, zero, eight)"
    " r = Relu(p)",
    "16 bits": "r = qonnx.custom_op.general.IntQuant(n, other, zero, sixteen)",
}
BETWEEN = {
    "Identity": "a = Identity(r)",
    "Dropout": "a = Dropout(r)",
    "Mul": "a = Mul(r, one)",
    "Add": "a = Add(zero, r)",
    "Cast": "a = Cast<to=1>(r)",
    "Transpose": "t = Transpose<perm=[1, 0]>(r) a = Transpose<perm=[1, 0]>(t)",
    "TransposeNeg": "t = Transpose<perm=[1, 0]>(r) u = Neg(t) v = Neg(u)"
    " a = Transpose<perm=[1, 0]>(v)",
    "Slice": "a = Slice(r, first, last)",
    "Expand": "a = Expand(r, single)",
    "If": "a = If(yes) <then_branch = t () => (float[m, 8] b) { b = Identity(r) },"
    " else_branch = e () => (float[m, 8] c) { c = Neg(r) }>",
    "all": "d = Dropout(r) e = Mul(d, one) f = Cast<to=1>(e) a = Slice(f, first, last)",
}
QUANTIZERS = {
    "2 bits": "IntQuant(a, s, zero, two)",
    "4 bits": "IntQuant(a, s, zero, four)",
    "4 bits unsigned": "IntQuant<signed=0>(a, s, zero, four)",
    "8 bits": "IntQuant(a, s, zero, eight)",
    "8 bits unsigned": "IntQuant<signed=0>(a, s, zero, eight)",
    "5 bits": "IntQuant(a, s, zero, five)",
    "8 tiny bits": "IntQuant(a, tiny, zero, eight)",
    "16 bits": "IntQuant(a, s, zero, sixteen)",
    "float8": "FloatQuant(a, s, four, three, seven, most)",
}
CONSTANTS = """
    float zero = {0}, float one = {1}, float two = {2}, float three = {3}, float four = {4},
    float five = {5}, float six = {6}, float seven = {7}, float eight = {8}, float sixteen = {16},
    float minus = {-1}, float lowest = {-1e9}, float largest = {1e9}, float most = {448},
    float s = {0.1}, float other = {0.37}, float tiny = {1e-9}, bool yes = {1},
    int64[1] first = {0}, int64[1] last = {2147483647}, int64[1] single = {1}
"""
LINES = np.linspace(-30, 30, 240, dtype=np.float32).reshape(-1, 8)
X = np.concatenate([LINES, 1e-8 * LINES, np.float32(1e-3) * LINES])


def fusible_model(before: str, middle: str, quantizer: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
        graph (float[m, 8] x) => (float[m, 8] y) <{CONSTANTS}> {{
            n = Neg(x)
            {before}
            {middle}
            y = qonnx.custom_op.general.{quantizer}
        }}"""
    )


def side_by_side(models: Mapping[str, onnx.ModelProto]) -> onnx.ModelProto:
    """Merge models, with names prefixed by `key/`: they share nothing that could be fused."""
    whole, *others = (onnx.compose.add_prefix(proto, f"{key}/") for key, proto in models.items())
    for other in others:
        whole.graph.MergeFrom(other.graph)
    return whole
