# SPDX-License-Identifier: Apache-2.0
"""Choice between static and dynamic scales by layer: `activations="auto"`."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import anybit
from anybit import OptionError

# The second layer reads rows of very different magnitudes, the first one rows that are alike.
OUTLIERS = """<ir_version: 9, opset_import: ["": 20]>
g (float[n,16] x, float[n,1] gain) => (float[n,8] y) {
    first = MatMul(x, w1) bounded = Tanh(first) wide = Mul(bounded, gain)
    second = MatMul(wide, w2) y = Div(second, gain)}"""
ROWS = 400


def make_model(text=OUTLIERS):
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in (("w1", (16, 16)), ("w2", (16, 8))):
        weight = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model


def make_data(exponents):
    random = np.random.default_rng(1)
    gain = 10 ** random.uniform(*exponents, size=(ROWS, 1))
    x = random.uniform(-1, 1, size=(ROWS, 16))
    return {"x": x.astype(np.float32), "gain": gain.astype(np.float32)}


def quantize(exponents, **options):
    return anybit.quantize(make_model(), make_data(exponents), activations="auto", **options)


def list_activations(result):
    return [layer.activations for layer in result.layers]


def test_auto_selects_dynamic_scales_for_outliers_by_row():
    result = quantize((-2, 2))
    static = anybit.quantize(make_model(), make_data((-2, 2)))
    assert list_activations(result) == ["uint8", "uint8 dynamic"]
    assert result.verdict.sqnr > static.verdict.sqnr + 10
    (remark,) = [remark for remark in result.remarks if "dynamic scales" in remark]
    assert remark.startswith("1 of 2 activations got dynamic scales (uint8 dynamic): SQNR ")


def test_auto_keeps_static_scales_of_rows_that_are_alike():
    result, static = quantize((0, 0)), anybit.quantize(make_model(), make_data((0, 0)))
    assert list_activations(result) == ["uint8", "uint8"]
    assert not any("dynamic" in remark for remark in result.remarks)
    assert result.verdict == static.verdict


def test_auto_keeps_specs_of_layers_by_name():
    result = quantize((-2, 2), layers={"MatMul_1": "int8/uint8"})
    assert list_activations(result) == ["uint8", "uint8"]


def test_auto_is_the_same_for_any_number_of_threads():
    before, files = anybit.num_threads(), []
    try:
        for threads in (1, 2):
            anybit.set_num_threads(threads)
            files.append(quantize((-2, 2)).model)
    finally:
        anybit.set_num_threads(before)
    first, second = (ir.to_proto(model).SerializeToString() for model in files)
    assert first == second


def test_auto_gives_both_factors_of_a_product_the_same_scales():
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[n,4,16] x, float[n,4,1] gain) => (float[n,4,4] y) {
        first = MatMul(x, w1) wide = Mul(first, gain) turned = Transpose<perm=[0, 2, 1]>(first)
        product = MatMul(wide, turned) y = Div(product, gain)}"""
    data = {"x": np.random.default_rng(2).uniform(-1, 1, size=(ROWS, 4, 16)).astype(np.float32)}
    gain = 10 ** np.random.default_rng(3).uniform(-2, 2, size=(ROWS, 4, 1))
    result = anybit.quantize(
        make_model(text), data | {"gain": gain.astype(np.float32)}, activations="auto"
    )
    (product,) = [layer for layer in result.layers if not layer.weights]
    assert product.activations == "uint8 dynamic"


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("y = Conv(x, w)", ["uint8 dynamic"]),
        ("a = Conv(x, w) b = Relu(a) y = Conv(b, w)", ["uint8 dynamic", "uint8"]),
        ("a = Conv(x, w) b = Mul(a, a) s = Sqrt(b) y = Conv(s, w)", ["uint8 dynamic"] * 2),
        ("y = Conv<group=2>(x, v)", ["uint8"]),
    ],
)
def test_auto_selects_dynamic_scales_of_convolutions_that_read_floats(text, specs):
    """Convolutions that exchange codes keep static scales, and those with groups."""
    random = np.random.default_rng(0)
    head = '<ir_version: 9, opset_import: ["": 20]> g (float[n,2,8,8] x, float[n,1,1,1] gain) '
    body = text.replace("y =", "z =") + " y = Div(z, gain)"
    model = onnx.parser.parse_model(f"{head} => (float[n,2,h,v2] y) {{ {body} }}")
    for name, shape in (("w", (2, 2, 3, 3)), ("v", (2, 1, 3, 3))):
        weight = random.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    gain = 10 ** random.uniform(-2, 2, size=(ROWS, 1, 1, 1))
    x = random.normal(size=(ROWS, 2, 8, 8)) * gain
    data = {"x": x.astype(np.float32), "gain": gain.astype(np.float32)}
    assert list_activations(anybit.quantize(model, data, activations="auto")) == specs


def test_auto_takes_one_sample():
    data = {name: array[:1] for name, array in make_data((0, 1)).items()}
    result = anybit.quantize(make_model(), data, activations="auto")
    assert result.verdict.samples == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"effort": "fast"}, "effort='fast'"),
        ({"integer_only": True}, "integer_only=True"),
        ({"budget": "30dB"}, "budget='30dB'"),
        ({"scales": "power-of-two"}, "scales='power-of-two'"),
        ({"target": "finn"}, "target='finn'"),
    ],
)
def test_auto_refuses_options_that_need_static_scales(options, words):
    with pytest.raises(OptionError, match=f"cannot be combined with {words}; use .*'uint8'"):
        quantize((0, 0), **options)


def test_auto_needs_data():
    with pytest.raises(OptionError, match=r"'auto' needs data.*'uint8 dynamic'"):
        anybit.quantize(make_model(), activations="auto")
