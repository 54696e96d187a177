# SPDX-License-Identifier: Apache-2.0
"""No rewrite of ONNX Runtime's optimizer changes a converted model, whatever stands between."""

import numpy as np
import onnx
import onnxruntime
import pytest
from forms import EVERY_LEVEL, NATIVE, checked, options
from small_models import kinds

import anybit
from anybit.onnx.conversion import convert
from anybit.onnx.forms import Form

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


def between(before: str, middle: str, quantizer: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
        graph (float[m, 8] x) => (float[m, 8] y) <{CONSTANTS}> {{
            n = Neg(x)
            {before}
            {middle}
            y = qonnx.custom_op.general.{quantizer}
        }}"""
    )


def check(proto: onnx.ModelProto, form: Form) -> None:
    converted = convert(proto, to=form)
    assert converted.exact
    file = checked(form, converted).SerializeToString()
    wanted = anybit.load(proto).run(X)["y"]
    for level in EVERY_LEVEL:
        chosen = options(level, library=False)
        loaded = onnxruntime.InferenceSession(file, chosen, ["CPUExecutionProvider"])
        np.testing.assert_array_equal(loaded.run(None, {"x": X})[0], wanted, level)


@pytest.mark.parametrize("form", NATIVE)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
@pytest.mark.parametrize("before", BEFORE)
def test_behind_nodes_that_do_nothing(before: str, quantizer: str, form: Form) -> None:
    for middle in BETWEEN.values():
        check(between(BEFORE[before], middle, QUANTIZERS[quantizer]), form)


def test_no_fence_where_none_is_needed() -> None:
    pair = ["QuantizeLinear", "DequantizeLinear"]

    def written(before: str, middle: str, quantizer: str) -> list[str]:
        proto = between(before, middle, quantizer)
        return kinds(convert(proto, to="qdq").model)[1:]

    drop, eight, four = BETWEEN["Dropout"], QUANTIZERS["8 bits"], QUANTIZERS["4 bits"]
    assert written(BEFORE["relu6"], drop, eight) == ["Clip", "Dropout", *pair]
    assert written(BEFORE["relu"], drop, eight) == ["Relu", "Dropout", *pair]
    assert written(BEFORE["relu"], drop, four) == ["Relu", "Dropout", "Min", *pair]
    assert written("r = Sigmoid(n)", drop, four) == ["Sigmoid", "Dropout", *pair]
    assert written("p = Relu(n) r = Mul(p, six)", drop, four) == ["Relu", "Mul", "Dropout", *pair]


def test_a_quantizer_of_the_file_behind_nodes_that_do_nothing() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
        graph (float[m, 8] x) => (float[m, 8] y)
            <float s = {0.1}, float other = {0.37}, float b = {8}, float z = {0}, int8 c = {0}> {
            n = Neg(x)
            q = qonnx.custom_op.general.IntQuant(n, s, z, b)
            d = Dropout(q)
            p = QuantizeLinear(d, other, c)
            y = DequantizeLinear(p, other, c)
        }"""
    )
    for form in NATIVE:
        check(proto, form)


def test_long_chains_of_nodes_that_do_nothing() -> None:
    identities = "\n".join(f"i{index + 1} = Identity(i{index})" for index in range(1200))
    proto = between(
        f"p = Relu(n) i0 = Identity(p) {identities}", "a = Identity(i1200)", QUANTIZERS["4 bits"]
    )
    check(proto, Form.QDQ)
