# SPDX-License-Identifier: Apache-2.0
"""Leading axes that are merged around products with computed scales, against the float graph."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import anybit

HEAD = '<ir_version: 9, opset_import: ["": 20]> g '
PRODUCT = "(float[n,t,8] x) => (float[n,t,5] y) {y = MatMul(x, w)}"
WEIGHTS = numpy_helper.from_array(
    np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32), "w"
)


def quantize(text=PRODUCT):
    """Return a graph with a weight w of 8 x 5, and dynamic activations, as a message."""
    model = onnx.parser.parse_model(HEAD + text)
    model.graph.initializer.append(WEIGHTS)
    return ir.to_proto(anybit.quantize(model, weights="int8", activations="int8 dynamic").model)


def make_rows(*sizes):
    return np.random.default_rng(1).normal(size=sizes).astype(np.float32)


def append_after(model, nodes, **constants):
    """Let nodes follow the output y, which they call s, and compute y."""
    for node in model.graph.node:
        node.output[:] = ["s" if name == "y" else name for name in node.output]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    return model


def count_merged(compiled):
    """Return the number of regions whose inputs have two axes."""
    return sum(len(program.inputs[0].sizes) == 1 for program in compiled.report.programs)


def check(model, inputs, *, merged=1):
    compiled = anybit.compile(model)
    expected, actual = anybit.load(model).run(inputs)["y"], compiled.run(inputs)["y"]
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    assert count_merged(compiled) == merged
    return compiled


def test_rows_are_merged():
    check(quantize(), make_rows(2, 3, 8))


def list_operators(compiled):
    return [node.op_type for node in compiled.model.graph]


@pytest.mark.parametrize("shape", [(2, 3, 8), (1, 1, 8)])
def test_programs_take_several_axes(shape):
    """Leave no Reshapes around programs and the elementwise operators between them."""
    text = """(float[n,t,8] x) => (float[n,t,5] y)
        <float half = {0.5}, float[5] more = {1,2,3,4,5}> {
        a = MatMul(x, w) b = Mul(a, half) c = Add(b, more) d = Erf(c) y = Mul(d, a) }"""
    compiled = check(quantize(text), make_rows(*shape))
    assert not {"Reshape", "Shape"} & {*list_operators(compiled)}
    for empty in ((0, 3, 8), (2, 0, 8)):
        (y,) = compiled.engine.run({"x": make_rows(*empty)}).values()
        assert y.shape == (*empty[:2], 5)


@pytest.mark.parametrize("axis", [2, -1])
def test_blocks_with_normalizations_are_one_region(axis):
    """Compute layer normalizations, GELU and the second residual in the region of the products."""
    text = f"""(float[n,t,8] x) => (float[n,t,5] y) <float[8] gain = {{1,2,1,2,1,2,1,2}},
        float root = {{1.4142135}}, float one = {{1.0}}, float half = {{0.5}}> {{
        h = LayerNormalization<axis: int = {axis}>(x, gain) a = MatMul(h, u)
        d = Div(a, root) e = Erf(d) f = Add(e, one) k = Mul(half, f) m = Mul(a, k)
        b = MatMul(m, v) c = Add(b, h) l = LayerNormalization<axis: int = {axis}>(c, gain)
        y = MatMul(l, w) }}"""
    model = onnx.parser.parse_model(HEAD + text)
    rng = np.random.default_rng(0)
    weights = {"u": rng.normal(size=(8, 9)), "v": rng.normal(size=(9, 8))}
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    model.graph.initializer.append(WEIGHTS)
    quantized = anybit.quantize(model, weights="int8", activations="int8 dynamic").model
    x = make_rows(2, 3, 8)
    x[0, 1], x[1, 2] = 0, 1e38
    compiled = anybit.compile(quantized)
    assert list_operators(compiled) == ["IntegerNetwork"]
    expected, actual = (y.run({"x": x})["y"] for y in (anybit.load(quantized), compiled))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0.05 * np.abs(expected).max())
    exact = anybit.compile(quantized, guarantee="exact")
    assert not exact.report.programs
    np.testing.assert_array_equal(exact.run({"x": x})["y"], expected)


def test_programs_of_several_inputs_take_several_axes():
    text = """(float[n,t,8] x, float[n,t,5] r) => (float[n,t,5] y, float[n,t,5] z) {
        a = MatMul(x, w) y = Add(a, r) z = Neg(y) }"""
    model = quantize(text)
    inputs = {"x": make_rows(2, 3, 8), "r": make_rows(2, 3, 5)}
    compiled = anybit.compile(model)
    expected, actual = anybit.load(model).run(inputs), compiled.run(inputs)
    for name, y in expected.items():
        np.testing.assert_allclose(actual[name], y, rtol=1e-5, atol=1e-5, strict=True)
    assert "Reshape" not in list_operators(compiled)


def test_marks_in_a_file_do_not_remove_nodes():
    text = """(float[n,t,8] x) => (float[n,t,5] y) {
        a = MatMul(x, w) b = Neg(a) c = Exp(b) y = MatMul(c, v) }"""
    model = onnx.parser.parse_model(HEAD + text)
    square = np.random.default_rng(3).normal(size=(5, 5)).astype(np.float32)
    model.graph.initializer.extend([WEIGHTS, numpy_helper.from_array(square, "v")])
    quantized = ir.to_proto(anybit.quantize(model, activations="int8 dynamic").model)
    inputs = {"x": make_rows(2, 3, 8)}
    expected = anybit.compile(quantized).run(inputs)["y"]
    marks = {"Neg": "merged", "Exp": "restored"}
    for node in quantized.graph.node:
        if node.op_type in marks:
            node.metadata_props.add(key="anybit.rows", value=marks[node.op_type])
    actual = anybit.compile(quantized).run(inputs)["y"]
    np.testing.assert_array_equal(actual, expected, strict=True)


def test_rows_stay_merged_around_other_operators():
    """Keep the axes of a float product between programs."""
    text = """(float[n,t,8] x) => (float[n,t,5] y) {
        a = MatMul(x, w) b = MatMul(a, v) c = Abs(b) y = MatMul(c, v) }"""
    model = onnx.parser.parse_model(HEAD + text)
    square = np.random.default_rng(3).normal(size=(5, 5)).astype(np.float32)
    model.graph.initializer.extend([WEIGHTS, numpy_helper.from_array(square, "v")])
    quantized = anybit.quantize(
        model, weights="int8", activations="int8 dynamic", keep=["MatMul_1"]
    )
    compiled = check(ir.to_proto(quantized.model), make_rows(2, 3, 8), merged=2)
    assert "MatMul" in list_operators(compiled)


@pytest.mark.parametrize("operand", ["1,1,1,1", "1,1,1", "1", ""])
def test_single_elements_of_other_ranks(operand):
    text = f"(float[n,t,8] x, float[{operand}] k) => (float y) {{p = Mul(x, k) y = MatMul(p, w)}}"
    model = quantize(text.replace("float[]", "float"))
    k = np.full([int(size) for size in operand.split(",") if size], 3, np.float32)
    check(model, {"x": make_rows(2, 3, 8), "k": k})


@pytest.mark.parametrize("axis", [2, -1])
def test_quantizers_of_channels_keep_the_last_axis(axis):
    nodes = [
        helper.make_node("QuantizeLinear", ["s", "scale", "zero"], ["q"], axis=axis),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], axis=axis),
    ]
    scale = np.float32([0.1, 0.2, 0.3, 0.4, 0.5])
    model = append_after(quantize(), nodes, scale=scale, zero=np.zeros(5, np.int8))
    check(model, make_rows(2, 3, 8))


def test_layers_keep_the_names_of_outputs():
    (layer,) = check(quantize(), make_rows(2, 3, 8)).report.layers
    assert layer.output == "y"


@pytest.mark.parametrize("opset", [17, 18])
def test_axes_of_reductions(opset):
    """Accept axes as attributes and as inputs."""
    model = quantize()
    (imported,) = [item for item in model.opset_import if not item.domain]
    imported.version = opset
    reductions = [node for node in model.graph.node if node.op_type.startswith("Reduce")]
    assert reductions
    for node in reductions:
        if opset == 18:
            model.graph.initializer.append(numpy_helper.from_array(np.int64([2]), node.name))
            node.input[1:] = [node.name]
        else:
            del node.input[1:]
            node.attribute.append(helper.make_attribute("axes", [2]))
    check(model, make_rows(2, 3, 8))


def test_reductions_of_no_axes_are_not_merged():
    """Leave a scale per element as it is."""
    model = quantize()
    (node,) = [node for node in model.graph.node if node.op_type == "ReduceMax"]
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(0, np.int64), "none"))
    node.input[1:] = ["none"]
    node.attribute.append(helper.make_attribute("noop_with_empty_axes", 1))
    check(model, make_rows(2, 3, 8), merged=0)


@pytest.mark.parametrize("sizes", [(0, 3), (2, 0), (0, 0)])
def test_free_sizes_can_be_zero(sizes):
    """Other programs may run the file on empty tensors, which `run` refuses."""
    y = anybit.compile(quantize()).engine.run({"x": make_rows(*sizes, 8)})["y"]
    assert y.shape == (*sizes, 5)


def find_quantizer(model):
    (node,) = [
        node for node in model.graph.node if node.op_type == "IntQuant" and node.input[0] == "x"
    ]
    return node


def test_constants_with_positions_are_not_merged():
    model = quantize(PRODUCT.replace("n,t", "n,3,t"))
    find_quantizer(model).input[2] = "zeros"
    zeros = np.zeros((1, 3, 1, 1), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(zeros, "zeros"))
    check(model, make_rows(2, 3, 4, 8), merged=0)


HEADS = """(float[n,t,8] x, int64[2] rows) => (float[t,n,5] y) <int64[1] last = {-1}> {
    shape = Concat<axis=0>(rows, last) s = Reshape(x, shape)
    p = MatMul(s, w) y = Transpose<perm=[1, 0, 2]>(p)}"""


def make_heads():
    """Return a model with channels that inference leaves open, and inputs."""
    model = quantize(HEADS)
    sizes = helper.make_tensor_value_info("p", onnx.TensorProto.FLOAT, ["n", "t", 5])
    model.graph.value_info.append(sizes)
    return model, {"x": make_rows(2, 3, 8), "rows": np.int64([2, 3])}


def test_channels_follow_from_the_matrix():
    """Merge rows after a Reshape to (rows, tokens, -1)."""
    (layer,) = check(*make_heads()).report.layers
    assert layer.guarantee is not None


def test_other_channels_than_rows_of_the_matrix_fail():
    model, inputs = make_heads()
    engine = anybit.compile(model).engine
    with pytest.raises(Exception, match=r"must be float32 of shape \(n, 8\), got \(1, 3, 16\)"):
        engine.run(inputs | {"rows": np.int64([1, 3])})


def test_restored_rows_have_no_declared_names():
    """Equal names would let ONNX Runtime merge an Add and a LayerNormalization."""
    compiled = check(*make_heads())
    (node,) = [node for node in compiled.model.graph if node.op_type == "IntegerNetwork"]
    assert not {size.value for size in node.outputs[0].shape[:2]} & {"n", "t"}
