# SPDX-License-Identifier: Apache-2.0
"""Transposes and factors around products of two tensors, fused into these."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import anybit
from anybit.compiler import pipeline
from anybit.onnx.graph.editor import Editor
from anybit.ptq.insertion.nodes import NodeWriter
from anybit.ptq.specs.dynamic_grid import DynamicIntegerGrid

HEAD = '<ir_version: 9, opset_import: ["": 20]> g (float[n,t,24] x) => (float[n,t,24] y) '
CONSTANTS = "<int64[4] heads = {0, 0, 3, 8}, int64[3] joined = {0, 0, 24}, float scale = {0.35}>"
ATTENTION = """{
    q = MatMul(x, wq) qh = Reshape(q, heads) qt = Transpose<perm = [0, 2, 1, 3]>(qh)
    k = MatMul(x, wk) kh = Reshape(k, heads) kt = Transpose<perm = [0, 2, 3, 1]>(kh)
    v = MatMul(x, wv) vh = Reshape(v, heads) vt = Transpose<perm = [0, 2, 1, 3]>(vh)
    s = MatMul(qt, kt) z = Mul(s, scale) p = Softmax(z) o = MatMul(p, vt)
    ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, joined)
}"""


def quantize(text=ATTENTION, activations="int8 dynamic"):
    model = onnx.parser.parse_model(HEAD + CONSTANTS + text)
    rng = np.random.default_rng(0)
    for name in ("wq", "wk", "wv"):
        weights = rng.normal(size=(24, 24)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return ir.to_proto(anybit.quantize(model, activations=activations).model)


def count_operators(compiled):
    return Counter(node.op_type for node in compiled.model.graph)


def run(compiled, shape=(2, 7, 24)):
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    return compiled.run(x)["y"]


@pytest.mark.parametrize("activations", ["int8 dynamic", "uint8 dynamic"])
def test_fusion_does_not_change_a_bit(activations, monkeypatch):
    quantized = quantize(activations=activations)
    fused = anybit.compile(quantized)
    monkeypatch.setattr(pipeline, "fuse_matmuls", lambda model: None)
    plain = anybit.compile(quantized)
    assert count_operators(plain)["Transpose"] > 0
    assert count_operators(plain)["Mul"] == 1
    assert count_operators(plain)["DynamicMatMul"] == 2
    operators = count_operators(fused)
    assert operators["DynamicMatMul"] == 2
    assert not {"Transpose", "Mul"} & {*operators}
    assert run(fused).tobytes() == run(plain).tobytes()


@pytest.mark.parametrize(
    ("old", "new", "operator"),
    [
        ("Mul(s, scale)", "Mul(s, s)", "Mul"),
        (
            "y = Reshape(ot, joined)",
            "r = Reshape(ot, joined) t = Neg(o) u = ReduceSum(t) y = Add(r, u)",
            "Transpose",
        ),
        ("perm = [0, 2, 1, 3]>(o)", "perm = [0, 2, 3, 1]>(o)", "Transpose"),
    ],
)
def test_other_nodes_stay(old, new, operator):
    assert old in ATTENTION
    compiled = anybit.compile(quantize(ATTENTION.replace(old, new)))
    assert count_operators(compiled)[operator] == 1
    assert count_operators(compiled)["DynamicMatMul"] == 2
    assert np.isfinite(run(compiled)).all()


@pytest.mark.parametrize("reader", ["Mul(s, scale)", "Transpose<perm = [0, 2, 1, 3]>(s)"])
def test_readers_in_a_branch_stay(reader):
    """Leave nodes in a branch, which must compute its result."""
    scores = ATTENTION.split("v = MatMul")[0] + "s = MatMul(qt, kt)"
    text = f"""{scores} m = ReduceMax(x) c = Greater(m, scale)
        z = If(c)<then_branch = a () => (float[n,i,j,k] r) {{ r = {reader} }},
                  else_branch = b () => (float[n,i,j,k] r) {{ r = Neg(qh) }}>
        y = ReduceSum(z) }}"""
    compiled = anybit.compile(quantize(text))
    assert count_operators(compiled)["DynamicMatMul"] == 1
    assert np.isfinite(run(compiled)).all()


def make_product(order, *, asymmetric=False, first=True, along=None):
    """Return a product of quantized a and b, which is transposed after (`first`) its quantizer."""
    sizes = [(2, 3, 8, 7)[order.index(axis)] for axis in range(4)]
    text = f"""<ir_version: 9, opset_import: ["": 20]> g (float[2,3,5,8] a, float{sizes} b)
        => (float[2,3,5,7] y) {{ t = Transpose<perm = {list(order)}>(b) y = MatMul(a, t) }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    transpose, product = model.graph
    codes = range(256) if asymmetric else range(-127, 128)
    reader, index, axis = (transpose, 0, order[-2]) if first else (product, 1, 2)
    axis = axis if along is None else along
    for node, place, reduced in ((product, 0, 3), (reader, index, axis)):
        writer = NodeWriter(model, Editor(model), node, f"q{node.op_type}{place}")
        grid = DynamicIntegerGrid(codes, asymmetric, (reduced,))
        node.replace_input_with(place, writer.quantize_rows(node.inputs[place], grid))
    return ir.to_proto(model)


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("order", [(0, 1, 3, 2), (0, 2, 3, 1), (0, 2, 1, 3), (2, 3, 1, 0)])
def test_transpose_after_a_quantizer_does_not_change_a_bit(order, asymmetric):
    outputs = []
    for first in (True, False):
        proto = make_product(order, asymmetric=asymmetric, first=first)
        shape = [size.dim_value for size in proto.graph.input[1].type.tensor_type.shape.dim]
        b = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        a = np.random.default_rng(2).normal(size=(2, 3, 5, 8)).astype(np.float32)
        compiled = anybit.compile(proto)
        assert count_operators(compiled)["DynamicMatMul"] == 1
        outputs.append(compiled.run({"a": a, "b": b})["y"])
        expected = anybit.load(proto).run({"a": a, "b": b})["y"]
        np.testing.assert_allclose(outputs[-1], expected, rtol=0, atol=1e-5)
    assert outputs[0].tobytes() == outputs[1].tobytes()


def test_transpose_after_a_quantizer_of_other_rows_stays():
    proto = make_product((0, 1, 3, 2), along=2)
    assert count_operators(anybit.compile(proto))["MatMul"] == 1
