# SPDX-License-Identifier: Apache-2.0
"""Integer rewrites by ONNX Runtime, and fences against them."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from small_models import kinds

import anybit
from anybit.onnx.fencing import fence
from anybit.onnx.passes import InferShapes
from anybit.onnx.qdq.integer_kernels import RewriteReason, find_rewrites

INTEGER = {"MatMulIntegerToFloat", "MatMulNBits", "QGemm"}
WEIGHTS = np.random.default_rng(0).integers(-64, 64, (4, 4)).astype(np.int8)
PAIR = "{0}q = QuantizeLinear({1}, s, z) {0} = DequantizeLinear({0}q, s, z)"
QUANTIZED = PAIR.format("y", "r")

# A node that reads the dequantized x, and is rewritten if a quantizer follows.
ROUNDING = {
    "Conv": "r = Conv(d, w)",
    "Conv with a float bias": "r = Conv(d, w, bias)",
    "Conv of float weights": "r = Conv(d, kernel, bias)",
    "Conv and Relu": "p = Conv(d, w) r = Relu(p)",
    "Conv and Add": "p = Conv(d, w) r = Add(p, column)",
    "Conv and MaxPool": "p = Conv(d, w) r = MaxPool<kernel_shape = [1, 1]>(p)",
    "AveragePool": "r = AveragePool<kernel_shape = [2, 2], pads = [0, 0, 1, 1]>(d)",
    "GlobalAveragePool": "r = GlobalAveragePool(d)",
    "LeakyRelu": "r = LeakyRelu(d)",
    "Sigmoid": "r = Sigmoid(d)",
    "Softmax": "r = Softmax(d)",
    "Add": "r = Add(d, e)",
    "Mul": "r = Mul(d, e)",
    "Concat": "r = Concat<axis = 1>(d, e)",
    "Where": "r = Where(yes, d, e)",
    "behind Reshape": "m = Reshape(d, same) r = Sigmoid(m)",
    "behind Identity": "m = Identity(d) r = Sigmoid(m)",
    "behind If": "m = If(yes) <then_branch = t () => (float[n, 4, 4, 4] o) { o = Identity(d) },"
    " else_branch = f () => (float[n, 4, 4, 4] p) { p = Neg(d) }> r = Sigmoid(m)",
}


# Not in every version.
CAUTIOUS = {"Conv and Add"}


def image(body: str, *, code: str = "uint8") -> ir.Model:
    """Build a network of two dequantized images d and e."""
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        graph (float[n, 4, 4, 4] x) => (float y) <float s = {{0.1}}, {code} z = {{0}},
            int8 zw = {{0}}, float t = {{0.13}}, int64[4] same = {{0, 4, 4, 4}},
            float[4] bias = {{0.3, 0.1, -0.2, 0.7}}, bool yes = {{1}},
            float[4, 1, 1] column = {{0.3, 0.1, -0.2, 0.7}}> {{
        n = Neg(x)
        {PAIR.format("d", "n")}
        a = Abs(x)
        eq = QuantizeLinear(a, t, z) e = DequantizeLinear(eq, t, z)
        w = DequantizeLinear(codes, t, zw)
        {body}
    }}"""
    kernel = WEIGHTS.reshape(4, 4, 1, 1)
    return parsed(text, codes=kernel, kernel=kernel.astype(np.float32))


def parsed(text: str, **constants: np.ndarray) -> ir.Model:
    """Parse a model with an output of any shape, and add constants."""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    proto.graph.initializer.extend(tensors)
    model = ir.from_proto(proto)
    InferShapes()(model)
    return model


def optimized(model: ir.Model, folder: object) -> set[str]:
    """Return the integer operators after optimization by the installed runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = f"{folder}/optimized.onnx"
    file = ir.to_proto(model).SerializeToString()
    onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    graph = onnx.load(options.optimized_model_filepath).graph
    return {
        node.op_type
        for node in graph.node
        if node.op_type in INTEGER or node.op_type.startswith("QLinear")
    }


@pytest.mark.parametrize("name", ROUNDING)
def test_rewrites_of_nodes_before_a_quantizer(name: str, tmp_path: object) -> None:
    model = image(f"{ROUNDING[name]} {QUANTIZED}")
    (rewrite,) = (
        rewrite for rewrite in find_rewrites(model) if rewrite.reason is not RewriteReason.MERGED
    )
    assert rewrite.reason is RewriteReason.ROUNDS
    assert optimized(model, tmp_path) or name in CAUTIOUS
    fenced = fence(model)
    assert rewrite.node in [node.node for node in fenced.fenced]
    assert not fenced.open
    assert "Min" in kinds(model)
    assert not optimized(model, tmp_path)
    assert not find_rewrites(model)


@pytest.mark.parametrize("name", ROUNDING)
def test_integer_kernels_rewrites_skip_float_nodes(name: str, tmp_path: object) -> None:
    model = image(f"{ROUNDING[name]} y = Neg(r)")
    assert not find_rewrites(model)
    assert not optimized(model, tmp_path)


@pytest.mark.parametrize("name", ["Sigmoid", "Add", "Concat"])
def test_integer_kernels_rewrites_leave_out_sixteen_bits(name: str, tmp_path: object) -> None:
    model = image(f"{ROUNDING[name]} {QUANTIZED}", code="uint16")
    assert not find_rewrites(model)
    assert not optimized(model, tmp_path)


ROWS = {
    "MatMul": "r = MatMul(d, w)",
    "MatMul quantized": f"r = MatMul(d, w) {QUANTIZED}",
    "MatMul and a bias": "p = MatMul(d, w) r = Add(p, b)",
    "MatMul and a dequantized bias": "p = MatMul(d, w) r = Add(p, i)",
    "Gemm": "r = Gemm(d, w)",
    "Gemm and a bias": "r = Gemm(d, w, b)",
    "Gemm and a dequantized bias": "r = Gemm(d, w, i)",
    "Gemm quantized": f"r = Gemm(d, w, b) {QUANTIZED}",
    "floats": "r = MatMul(x, w)",
    "clipped weights": "cl = Clip(codes, low, high) v = DequantizeLinear(cl, t, zw)"
    " r = MatMul(x, v)",
    "behind Reshape": "m = Reshape(d, same) r = MatMul(m, w)",
    "of activations": "u = Transpose<perm = [1, 0]>(d) r = MatMul(u, e)",
}


def rows(body: str, weights: np.ndarray = WEIGHTS, code: str = "uint8") -> ir.Model:
    kind = {"int8": "int8", "uint8": "uint8", "uint16": "uint16"}[code]
    result = "y" if "y = " in body else "r"
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        graph (float[4, 4] x) => (float {result}) <float s = {{0.1}}, {kind} z = {{0}},
            int8 zw = {{0}}, float t = {{0.13}}, int64[2] same = {{0, 4}},
            float[4] b = {{0.3, 0.1, -0.2, 0.7}}, int32[4] ib = {{3, 1, -2, 7}},
            int8 low = {{-127}}, int8 high = {{127}}> {{
        n = Neg(x)
        {PAIR.format("d", "n")}
        a = Abs(x)
        eq = QuantizeLinear(a, t, z) e = DequantizeLinear(eq, t, z)
        w = DequantizeLinear(codes, t, zw)
        i = DequantizeLinear(ib, s)
        {body}
    }}"""
    return parsed(text, codes=weights)


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("MatMul", [None]),
        ("MatMul and a bias", [None]),
        ("MatMul quantized", [RewriteReason.ROUNDS]),
        ("MatMul and a dequantized bias", [RewriteReason.ROUNDS]),
        ("Gemm", [RewriteReason.ROUNDS]),
        ("Gemm and a bias", [RewriteReason.ROUNDS]),
        ("Gemm and a dequantized bias", [RewriteReason.ROUNDS]),
        ("Gemm quantized", [RewriteReason.ROUNDS]),
        ("floats", [RewriteReason.NARROW]),
        ("clipped weights", [RewriteReason.NARROW]),
        ("behind Reshape", [RewriteReason.SATURATES]),
        ("of activations", [RewriteReason.SATURATES]),
    ],
)
def test_integer_kernels_rewrites_of_products(
    name: str, reasons: list[RewriteReason | None], tmp_path: object
) -> None:
    model = rows(ROWS[name])
    assert [rewrite.reason for rewrite in find_rewrites(model)] == reasons
    fenced = fence(model)
    assert not fenced.open
    made = optimized(model, tmp_path)
    assert made <= ({"MatMulIntegerToFloat"} if None in reasons else set())


@pytest.mark.parametrize("code", ["uint8", "int8"])
def test_integer_kernels_rewrites_tell_weights_that_saturate(code: str, tmp_path: object) -> None:
    model = rows(ROWS["MatMul"], np.full((4, 4), 127, np.int8), code)
    (rewrite,) = find_rewrites(model)
    assert rewrite.reason is RewriteReason.SATURATES
    assert (
        fence(model)
        .details()
        .startswith("a Min fences 1 node against fusion to integer operators: ")
    )
    assert not optimized(model, tmp_path)
    safe = rows(ROWS["MatMul"], np.full((4, 4), -64, np.int8), code)
    proven = fence(safe).integer
    assert bool(proven) == (code == "uint8")
    assert optimized(safe, tmp_path) == ({"MatMulIntegerToFloat"} if proven else set())


def test_integer_kernels_fence_keeps_sixteen_bits_from_narrower_products(tmp_path: object) -> None:
    model = rows(ROWS["MatMul"], np.full((4, 4), 127, np.int8), "uint16")
    assert [node.reason for node in fence(model).fenced] == [RewriteReason.NARROW]
    assert not optimized(model, tmp_path)


def test_integer_kernels_fence_for_one_reader_enables_no_rewrite(tmp_path: object) -> None:
    """Fence d for the Sigmoid: the MatMul keeps floats and dequantized weights."""
    body = f"p = Sigmoid(d) r = MatMul(d, w) v = Add(r, p) {PAIR.format('g', 'p')} y = Add(v, g)"
    model = rows(body)
    assert [rewrite.reason for rewrite in find_rewrites(model)] == [RewriteReason.ROUNDS, None]
    fenced = fence(model)
    assert [node.reason for node in fenced.fenced] == [RewriteReason.ROUNDS, RewriteReason.NARROW]
    assert not fenced.integer
    assert not optimized(model, tmp_path)


def test_integer_kernels_fence_reports_open_nodes() -> None:
    model = rows(
        "k = Mul(s, t) v = DequantizeLinear(codes, k, zw) r = MatMul(d, v)",
        np.full((4, 4), 127, np.int8),
    )
    fenced = fence(model)
    assert [rewrite.reason for rewrite in fenced.open] == [RewriteReason.SATURATES]
    assert not fenced.fenced


def test_integer_kernels_check_names_nodes_that_may_differ() -> None:
    model = rows(ROWS["MatMul"], np.full((4, 4), 127, np.int8))
    (finding,) = (
        finding
        for finding in anybit.check(model, "onnxruntime")
        if finding.code == "integer-operator"
    )
    assert "CPUs with AVX2 or AVX-512 without VNNI" in finding.problem
    assert "session.disable_quant_qdq = 1" in finding.remedy
    undeclared = ir.to_proto(model)
    del undeclared.graph.value_info[:]
    assert finding in anybit.check(undeclared, "onnxruntime")
    safe = rows(ROWS["MatMul"])
    codes = {finding.code for finding in anybit.check(safe, "onnxruntime")}
    assert "integer-operator" not in codes


def test_integer_kernels_convert_takes_dequantizers_without_inputs_for_an_error() -> None:
    proto = ir.to_proto(rows(ROWS["MatMul"]))
    for node in proto.graph.node:
        if node.output[0] == "w":
            del node.input[:]
    with pytest.raises(anybit.ModelError):
        anybit.convert(proto, to="qdq")


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("result", ["d", "dq", "y", "yq"])
def test_integer_kernels_check_of_quantizers_without_inputs_reports_so(
    result: str, kept: int
) -> None:
    proto = ir.to_proto(image(f"{ROUNDING['behind Reshape']} {QUANTIZED}"))
    for node in proto.graph.node:
        if node.output[0] == result:
            del node.input[kept:]
    findings = anybit.check(proto, "onnxruntime")
    assert any(finding.severity == "error" for finding in findings)
