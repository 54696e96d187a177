# SPDX-License-Identifier: Apache-2.0
"""GELUs after compiled layers: steps of regions, or nodes in the order that ONNX Runtime fuses."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import anybit
import anybit.onnxruntime
from anybit.compiler.program import program as p
from anybit.compiler.program.open_bits import has_open_bits, list_steps
from anybit.compiler.rewrite.gelu import reorder_gelus

HEAD = '<ir_version: 9, opset_import: ["": 20]> g (float[n,t,8] x) => (float[n,t,8] y) '
CONSTANTS = "<float root = {1.4142135}, float one = {1.0}, float half = {0.5}> "
GELU = "d = Div(s, root) e = Erf(d) a = Add(e, one) "
ORDERS = ["h = Mul(half, a) y = Mul(s, h)", "h = Mul(a, half) y = Mul(h, s)"]


def make(last, first="p = MatMul(x, w) s = Cos(p) "):
    text = CONSTANTS + "{" + first + GELU + last + "}"
    model = onnx.parser.parse_model(HEAD + text)
    weights = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


INSIDE = [
    *(GELU + last for last in ORDERS),
    GELU + "h = Mul(s, a) y = Mul(h, half)",
    GELU + "h = Mul(half, s) y = Mul(h, a)",
    "d = Mul(s, inverse) e = Erf(d) a = Add(one, e) h = Mul(a, half) y = Mul(h, s)",
    "y = Gelu(s)",
    GELU + "h = Mul(half, a) g = Mul(s, h) y = Add(g, s)",
]
CUBE = "q = Pow(s, three) c = Mul(cubic, q) "
TANH = "d = Add(s, c) u = Mul(d, scale) t = Tanh(u) a = Add(t, one) "
OF_TANH = [
    CUBE + TANH + "h = Mul(half, s) y = Mul(h, a)",
    CUBE + TANH + "h = Mul(s, a) y = Mul(h, half)",
    "m = Mul(s, s) q = Mul(m, s) c = Mul(q, cubic) " + TANH + "h = Mul(half, a) y = Mul(s, h)",
    "m = Mul(cubic, s) q = Mul(m, s) c = Mul(q, s) " + TANH + "h = Mul(s, a) y = Mul(half, h)",
    'y = Gelu<approximate = "tanh">(s)',
    CUBE + TANH + "h = Mul(half, s) g = Mul(h, a) y = Add(g, s)",
]
OUTSIDE = [
    CUBE.replace("three", "one") + TANH + "h = Mul(half, s) y = Mul(h, a)",
    CUBE + TANH + "h = Mul(half, s) g = Mul(h, a) y = Add(g, u)",
    GELU.replace("root", "half") + ORDERS[0],
    GELU + "h = Mul(half, a) g = Mul(s, h) y = Sub(g, a)",
]


def make_layer(nodes):
    """Return a layer and nodes after it."""
    numbers = """, float inverse = {0.70710677}, float three = {3.0}, float cubic = {0.044715},
        float scale = {0.7978846}>"""
    text = CONSTANTS.replace(">", numbers) + "{s = MatMul(x, w) " + nodes
    model = onnx.parser.parse_model(HEAD + text + "}")
    weights = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def compile_dynamic(nodes):
    """Return a quantized layer and nodes after it, and the same compiled."""
    quantized = ir.to_proto(anybit.quantize(make_layer(nodes), activations="int8 dynamic").model)
    return quantized, anybit.compile(quantized)


def assert_close(quantized, compiled, x):
    expected, actual = (y.run({"x": x})["y"] for y in (anybit.load(quantized), compiled))
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("nodes", INSIDE)
def test_gelus_after_dynamic_activations_are_steps(nodes):
    quantized, compiled = compile_dynamic(nodes)
    (program,) = compiled.report.programs
    operations = [step.operation for at in program.instructions for step in list_steps(at)]
    assert operations.count(p.Operation.GELU) == 1
    assert not {"Erf", "Gelu", "Mul"} & {*count_operators(compiled.model)}
    (layer,) = [x for x in compiled.report.layers if x.layer.operator in ("Erf", "Gelu")]
    assert layer.guarantee == "bounded"
    assert layer.reason == f"ONNX leaves the last bits of its {layer.layer.operator} open"
    x = np.random.default_rng(1).normal(0, 2, (3, 5, 8)).astype(np.float32)
    x[0, 0], x[1, 1], x[2, 3] = np.nan, np.inf, 0
    assert_close(quantized, compiled, x)


@pytest.mark.parametrize("nodes", OF_TANH)
def test_gelus_of_tanh_after_dynamic_activations_are_sigmoids(nodes):
    quantized, compiled = compile_dynamic(nodes)
    (program,) = compiled.report.programs
    operations = [step.operation for at in program.instructions for step in list_steps(at)]
    assert operations.count(p.Operation.SIGMOID) == 1
    assert not {"Tanh", "Gelu", "Mul", "Pow"} & {*count_operators(compiled.model)}
    x = np.random.default_rng(1).normal(0, 2, (3, 5, 8)).astype(np.float32)
    x[0, 0], x[1, 1], x[2, 3], x[2, 4] = np.nan, np.inf, 0, 1e30
    assert_close(quantized, compiled, x)


@pytest.mark.parametrize("nodes", [GELU + ORDERS[0], OF_TANH[0], OF_TANH[4]])
def test_gelus_after_static_activations_are_no_steps(nodes):
    """Keep the guarantee of layers with exact sums."""
    model = make_layer(nodes)
    model.graph.input[0].CopyFrom(
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 4, 8])
    )
    data = {"x": np.random.default_rng(2).normal(size=(2, 4, 8)).astype(np.float32)}
    powers = {"weights": "int8 power-of-two", "activations": "int8 power-of-two"}
    compiled = anybit.compile(anybit.quantize(model, data, **powers))
    (program,) = compiled.report.programs
    assert not any(has_open_bits(list_steps(at)) for at in program.instructions)
    assert [layer.guarantee for layer in compiled.report.layers] == ["exact"]


@pytest.mark.parametrize("nodes", OUTSIDE)
def test_other_functions_stay_nodes(nodes):
    quantized, compiled = compile_dynamic(nodes)
    assert {"Erf", "Tanh"} & {*count_operators(compiled.model)}
    x = np.random.default_rng(1).normal(size=(3, 5, 8)).astype(np.float32)
    assert_close(quantized, compiled, x)


def test_certified_guarantee_leaves_gelus_in_the_graph():
    quantized, _ = compile_dynamic(INSIDE[0])
    compiled = anybit.compile(quantized, guarantee="certified")
    assert not compiled.report.programs


def list_factors(model):
    """Return the names of the inputs of the last node."""
    return [value.name for value in model.graph.outputs[0].producer().inputs]


def count_operators(model):
    return Counter(node.op_type for node in model.graph)


@pytest.mark.parametrize("last", ORDERS)
def test_reorder_gelus_multiplies_x_first(last):
    compiled = anybit.compile(anybit.quantize(make(last), activations="int8 dynamic"))
    (erf,) = [node for node in compiled.model.graph if node.op_type == "Erf"]
    (added,) = [node for node, _ in erf.outputs[0].uses()]
    ((product, _),) = added.outputs[0].uses()
    assert product.op_type == "Mul"
    factors = [value.producer().op_type for value in product.inputs]
    assert sorted(factors) == ["Add", "Mul"]
    assert count_operators(compiled.model)["Mul"] == 2


def test_onnxruntime_fuses_reordered_gelus(tmp_path):
    compiled = anybit.compile(anybit.quantize(make(ORDERS[0]), activations="int8 dynamic"))
    compiled.save(tmp_path / "m.onnx")
    options = onnxruntime.SessionOptions()
    anybit.onnxruntime.register(options)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx")
    assert "Gelu" in {node.op_type for node in optimized.graph.node}


def test_reorder_gelus_keeps_bits():
    """Compare on every 2^12th float32 number, among them subnormals, infinities and NaN."""
    text = "{" + GELU + ORDERS[0] + "}"
    head = '<ir_version: 9, opset_import: ["": 20]> g (float[n] s) => (float[n] y) '
    model = ir.from_proto(onnx.parser.parse_model(head + CONSTANTS + text))
    x = np.arange(0, 2**32, 2**12, dtype=np.uint64).astype(np.uint32) | np.uint32(0x5A5)
    tiny = np.arange(64, dtype=np.uint32)
    x = np.concatenate([x, tiny, tiny | np.uint32(1 << 31)]).view(np.float32)
    expected = anybit.load(ir.to_proto(model)).run({"s": x})["y"]
    reorder_gelus(model, {"s"})
    assert list_factors(model) == ["s_half_1", "a"]
    actual = anybit.load(ir.to_proto(model)).run({"s": x})["y"]
    np.testing.assert_array_equal(actual, expected)
    numbers = ~np.isnan(expected)
    assert (np.signbit(actual) == np.signbit(expected))[numbers].all()


@pytest.mark.parametrize(
    "last",
    [
        "h = Mul(half, a) y = Mul(x, h)",
        "h = Mul(one, a) y = Mul(s, h)",
        "h = Mul(half, d) y = Mul(s, h)",
        "h = Mul(half, a) y = Add(s, h)",
    ],
)
def test_reorder_gelus_leaves_other_functions(last):
    model = ir.from_proto(make(last))
    before = list_factors(model)
    reorder_gelus(model, {"s"})
    assert list_factors(model) == before


@pytest.mark.parametrize("divided", ["Div(root, s)", "Mul(s, root)", "Div(s, half)", "Div(s, x)"])
def test_reorder_gelus_leaves_functions_that_round_tiny_numbers(divided):
    """1 + erf(x) is 1 for subnormal x, where 0.5 x rounds, and 1 + erf(c x) may not be."""
    text = f"{{s = MatMul(x, w) d = {divided} e = Erf(d) a = Add(e, one) {ORDERS[0]}}}"
    model = ir.from_proto(onnx.parser.parse_model(HEAD + CONSTANTS + text))
    before = list_factors(model)
    reorder_gelus(model, {"s"})
    assert list_factors(model) == before


def test_reorder_gelus_keeps_shapes():
    """Leave a constant with more axes than x: it makes the result larger."""
    text = CONSTANTS.replace("float half", "float[1,1,1,1] half") + "{s = MatMul(x, w) " + GELU
    proto = onnx.parser.parse_model(HEAD + text + ORDERS[0] + "}")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    before = list_factors(model)
    reorder_gelus(model, {"s"})
    assert list_factors(model) == before


def test_gelus_of_exact_layers_beside_bounded_ones_stay():
    random = np.random.default_rng(0)
    text = "{s = MatMul(x, w) " + GELU + ORDERS[0] + " z = MatMul(x, v)}"
    head = HEAD.replace("y)", "y, float[n,t,4] z)").replace("n,t", "n")
    model = onnx.parser.parse_model(head + CONSTANTS + text)
    for name, columns in (("w", 8), ("v", 4)):
        weights = random.normal(size=(8, columns)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    for node in model.graph.node:
        node.name = node.output[0]
    data = [{"x": random.normal(size=(4, 8)).astype(np.float32)} for _ in range(8)]
    quantized = anybit.quantize(
        model,
        data,
        weights="int8 power-of-two",
        activations="uint8 power-of-two",
        layers={"z": "int8/int8 dynamic"},
    )
    compiled = anybit.compile(quantized)
    assert [x.guarantee for x in compiled.report.layers] == ["exact", "bounded"]
    (erf,) = [node for node in compiled.model.graph if node.op_type == "Erf"]
    (added,) = [node for node, _ in erf.outputs[0].uses()]
    ((product, _),) = added.outputs[0].uses()
    assert [value.name for value in product.inputs] == ["half", added.outputs[0].name]


def test_reorder_gelus_leaves_floats_with_defined_bits():
    model = ir.from_proto(make(ORDERS[0]))
    before = list_factors(model)
    reorder_gelus(model, set())
    assert list_factors(model) == before
