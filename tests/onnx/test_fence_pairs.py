# SPDX-License-Identifier: Apache-2.0
"""Fences beside pairs: where they stand; that they change nothing, and go on the way back."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_models import kinds

import anybit
from anybit.onnx.conversion import convert
from anybit.onnx.passes import FencePairs
from anybit.onnx.quantizers.nodes import is_dequantize

PAIR = ["QuantizeLinear", "DequantizeLinear"]
CONSTANTS = """<float s = {0.1}, float z = {0}, float two = {2}, float four = {4}, float five = {5},
    float seven = {7}, float three = {3}, float eight = {8}, float sixteen = {16},
    float[1, 4] each = {0.1, 0.2, 0.3, 0.4}, float most = {448},
    float[4, 4] w = {1, -1, 1, 0, 0, 1, -1, 1, 1, 0, 1, 1, -1, 1, 0, 1}>"""
QUANTIZERS = {
    "2 bits": "IntQuant(n, s, z, two)",
    "4 bits": "IntQuant<signed=0>(n, s, z, four)",
    "5 bits": "IntQuant(n, s, z, five)",
    "8 bits": "IntQuant(n, s, z, eight)",
    "16 bits": "IntQuant(n, s, z, sixteen)",
    "float8": "FloatQuant(n, s, four, three, seven, most)",
    "per channel": "IntQuant(n, each, z, eight)",
    "signs": "BipolarQuant(n, s)",
}


def source(quantizer: str, dtype: str = "float") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
        graph ({dtype}[m, 4] x) => ({dtype}[m, 4] y) {CONSTANTS} {{
            n = Neg(x)
            y = qonnx.custom_op.general.{quantizer}
        }}"""
    )


def fenced(proto: onnx.ModelProto, form: str = "qdq", *, before: bool) -> ir.Model:
    model = convert(proto, to=form, runtime="any").model
    pairs = [node for node in model.graph.all_nodes() if is_dequantize(node)]
    passes = [FencePairs(pairs)] + [FencePairs(pairs, before=True)] * before
    assert all(step(model).modified for step in passes[:1])
    for step in passes[1:]:
        step(model)
    text = ir.to_proto(model).SerializeToString()
    assert not any(step(model).modified for step in passes)
    assert ir.to_proto(model).SerializeToString() == text
    return model


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("form", ["qdq", "qcdq"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_fence_pairs_values_and_the_way_back(
    quantizer: str, dtype: str, form: str, before: bool
) -> None:
    proto = source(QUANTIZERS[quantizer], dtype)
    bare = convert(proto, to=form, runtime="any").model
    if not any(is_dequantize(node) for node in bare.graph):
        pytest.skip("the form has no such type")
    made = fenced(proto, form, before=before)
    x = (
        np.random.default_rng(0)
        .normal(0, 3, (50, 4))
        .astype(np.float16 if dtype == "float16" else np.float32)
    )
    file = ir.to_proto(made)
    onnx.checker.check_model(file, full_check=True)
    np.testing.assert_array_equal(anybit.load(file).run(x)["y"], anybit.load(proto).run(x)["y"])
    back = kinds(convert(file, to="qonnx").model)
    if quantizer == "float8" and before:  # limits are not codes
        back.remove("Min")
    assert back == kinds(convert(bare, to="qonnx").model)


@pytest.mark.parametrize(
    ("quantizer", "before"),
    [
        ("4 bits", ["Min"]),
        ("8 bits", ["Min"]),
        ("float8", ["Min"]),
        ("2 bits", ["Min"]),  # which its range needs
        ("signs", ["GreaterOrEqual", "Where"]),  # which are not moved
        ("per channel", []),  # not fenced either
    ],
)
def test_fence_pairs_position(quantizer: str, before: list[str]) -> None:
    made = fenced(source(QUANTIZERS[quantizer]), before=True)
    assert kinds(made) == ["Neg", *before, *PAIR, "Min"]
    *_, dequantize, fence = made.graph
    assert fence.outputs[0].name == "y"
    assert fence.outputs[0] is made.graph.outputs[0]
    assert dequantize.outputs[0].name != "y"


def test_after_constants_and_between_pairs() -> None:
    """Fence only named pairs, and none after another fence."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
        graph (float[m, 4] x) => (float[m, 4] y, float[m, 4] a) {CONSTANTS} {{
            a = qonnx.custom_op.general.IntQuant(x, s, z, eight)
            b = qonnx.custom_op.general.IntQuant(w, s, z, four)
            c = qonnx.custom_op.general.IntQuant(a, each, z, eight)
            m = MatMul(c, b)
            y = qonnx.custom_op.general.IntQuant(m, s, z, five)
        }}"""
    )
    made = fenced(proto, before=True)
    fences = [node for node in made.graph if node.op_type == "Min"]
    assert len(fences) == 6
    assert sorted(kinds(convert(made, to="qonnx").model)) == ["IntQuant"] * 4 + ["MatMul"]
    bare = convert(proto, to="qdq", runtime="any").model
    pairs = [node for node in bare.graph if is_dequantize(node)]
    FencePairs(pairs[:1])(bare)
    assert kinds(bare).count("Min") == 1
    assert [value.name for value in bare.graph.outputs] == ["y", "a"]


def test_fence_pairs_inside_branches() -> None:
    proto = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
        graph (bool c, float[m, 4] x) => (float[m, 4] y) {CONSTANTS} {{
            y = If(c) <then_branch = t () => (float[m, 4] u) {{
                u = qonnx.custom_op.general.IntQuant(x, s, z, eight) }},
                else_branch = e () => (float[m, 4] v) {{ v = Neg(x) }}>
        }}"""
    )
    made = fenced(proto, before=True)
    assert kinds(made) == ["If", "Min", *PAIR, "Min", "Neg"]
    x = np.float32(np.random.default_rng(0).normal(0, 9, (5, 4)))
    for c in (True, False):
        feeds = {"c": np.array(c), "x": x}
        expected = anybit.load(proto).run(feeds)["y"]
        np.testing.assert_array_equal(anybit.load(made).run(feeds)["y"], expected)
