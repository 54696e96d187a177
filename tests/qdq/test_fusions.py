# SPDX-License-Identifier: Apache-2.0
"""No rewrite of ONNX Runtime's optimizer changes a converted model, whatever stands between."""

import numpy as np
import onnx
import onnxruntime
import pytest
from form_sessions import EVERY_LEVEL, check_once, session_options
from forms import NATIVE
from fusible_models import BEFORE, BETWEEN, QUANTIZERS, X, fusible_model, side_by_side
from small_models import kinds

import anybit
from anybit.onnx.conversion import convert
from anybit.onnx.forms import Form


def check(proto: onnx.ModelProto, form: Form) -> None:
    converted = convert(proto, to=form)
    assert converted.exact
    file = check_once(form, converted).SerializeToString()
    feeds = {value.name: X for value in proto.graph.input}
    expected = anybit.load(proto).run(feeds)
    for level in EVERY_LEVEL:
        chosen = session_options(level)
        loaded = onnxruntime.InferenceSession(file, chosen, ["CPUExecutionProvider"])
        for name, actual in zip(expected, loaded.run(list(expected), feeds), strict=True):
            np.testing.assert_array_equal(actual, expected[name], f"{name}, {level}")


@pytest.mark.sample(30)
@pytest.mark.parametrize("form", NATIVE)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
@pytest.mark.parametrize("before", BEFORE)
def test_fusions_after_nodes_that_do_nothing(before: str, quantizer: str, form: Form) -> None:
    models = {
        name: fusible_model(BEFORE[before], middle, QUANTIZERS[quantizer])
        for name, middle in BETWEEN.items()
    }
    check(side_by_side(models), form)


def test_fusions_no_fence_where_none_is_needed() -> None:
    pair = ["QuantizeLinear", "DequantizeLinear"]

    def written(before: str, middle: str, quantizer: str) -> list[str]:
        proto = fusible_model(before, middle, quantizer)
        return kinds(convert(proto, to="qdq").model)[1:]

    drop, eight, four = BETWEEN["Dropout"], QUANTIZERS["8 bits"], QUANTIZERS["4 bits"]
    assert written(BEFORE["relu6"], drop, eight) == ["Clip", "Dropout", *pair]
    assert written(BEFORE["relu"], drop, eight) == ["Relu", "Dropout", *pair]
    assert written(BEFORE["relu"], drop, four) == ["Relu", "Dropout", "Min", *pair]
    assert written("r = Sigmoid(n)", drop, four) == ["Sigmoid", "Dropout", *pair]
    assert written("p = Relu(n) r = Mul(p, six)", drop, four) == ["Relu", "Mul", "Dropout", *pair]


def test_fusions_quantizer_of_the_file_after_nodes_that_do_nothing() -> None:
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


def test_fusions_long_chains_of_nodes_that_do_nothing() -> None:
    identities = "\n".join(f"i{index + 1} = Identity(i{index})" for index in range(1200))
    proto = fusible_model(
        f"p = Relu(n) i0 = Identity(p) {identities}", "a = Identity(i1200)", QUANTIZERS["4 bits"]
    )
    check(proto, Form.QDQ)
