# SPDX-License-Identifier: Apache-2.0
"""Nodes without a quantizer stay, and inconsistent ones are refused."""

from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from qdq_models import Lifted, check, pair, plain, qdq, quantizers, telling, tensor
from small_models import kinds

import anybit
from anybit.errors import ModelError
from anybit.onnx.qdq.qlinear import explain_kept

KEPT = [
    ("two scales", [plain("QuantizeLinear", "x s z", "q"), plain("DequantizeLinear", "q t z")]),
    (
        "two zero-points",
        [plain("QuantizeLinear", "x s z", "q"), plain("DequantizeLinear", "q s o")],
    ),
    (
        "computed scale",
        [
            plain("ReduceMax", "x", "m"),
            plain("QuantizeLinear", "x m z", "q"),
            plain("DequantizeLinear", "q m z"),
        ],
    ),
    ("negative", [plain("QuantizeLinear", "x n z", "q"), plain("DequantizeLinear", "q n z")]),
    (
        "float16",
        [
            plain("Cast", "x", "h", to=TensorProto.FLOAT16),
            plain("QuantizeLinear", "h h16 z", "q"),
            plain("DequantizeLinear", "q h16 z", "d"),
            plain("Cast", "d", to=TensorProto.FLOAT),
        ],
    ),
    (
        "integer x",
        [
            plain("Cast", "x", "i", to=TensorProto.INT32),
            plain("QuantizeLinear", "i s z", "q"),
            plain("DequantizeLinear", "q s z"),
        ],
    ),
    (
        "arithmetic of codes",
        [
            plain("QuantizeLinear", "x s z", "q"),
            plain("Concat", "q q", "c", axis=0),
            plain("DequantizeLinear", "c s z"),
        ],
    ),
]


@pytest.mark.parametrize("nodes", [nodes for _, nodes in KEPT], ids=[name for name, _ in KEPT])
def test_from_qdq_kept(nodes: list[onnx.NodeProto]) -> None:
    eight = TensorProto.INT8
    tensors = [tensor("s", 0.5), tensor("t", 1), tensor("n", -0.5), tensor("z", 0, eight)]
    tensors += [tensor("o", 1, eight), tensor("h16", 0.5, TensorProto.FLOAT16)]
    output = ("m",) if nodes[1].op_type == "Concat" else ("n",)
    proto = qdq(nodes, tensors, output=output, opset=21 if "h" in nodes[0].output else 13)
    if nodes[0].op_type == "ReduceMax":
        nodes[0].attribute.append(helper.make_attribute("keepdims", 0))
        proto = qdq(nodes, tensors, opset=13)
    lifted = Lifted(proto)
    assert quantizers(lifted.model) == []
    kept = [step for step in lifted.steps if step.action == "kept"]
    assert {step.operator for step in kept} == {"QuantizeLinear", "DequantizeLinear"}
    assert all(step.reason and step.exact for step in kept)
    if nodes[0].op_type != "ReduceMax" and nodes[0].output[0] != "i":  # no kernel for int32
        check(proto, np.float32([0.5, -1, 3]))


def test_from_qdq_float8_that_does_not_saturate_stays() -> None:
    zero = onnx.numpy_helper.from_array(np.zeros((), ml_dtypes.float8_e4m3fn), "z")
    nodes = [
        plain("QuantizeLinear", "x s z", "q", saturate=0),
        plain("DequantizeLinear", "q s z"),
    ]
    lifted = Lifted(qdq(nodes, [tensor("s", 1), zero]))
    assert lifted.steps[0].reason == "its codes are read by DequantizeLinear"
    assert lifted.steps[1].reason == "it does not saturate"


def test_from_qdq_integers_at_the_ends_stay() -> None:
    proto = qdq([plain("DequantizeLinear", "x s z")], [tensor("s", 0.5), tensor("z", 3, 2)])
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    (step,) = Lifted(proto).steps
    assert "elsewhere than a QuantizeLinear" in step.reason
    proto = qdq([plain("QuantizeLinear", "x s z")], [tensor("s", 0.5), tensor("z", 3, 2)])
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8
    (step,) = Lifted(proto).steps
    assert "nothing in the model" in step.reason


def test_from_qdq_codes_with_other_readers_stay() -> None:
    nodes = [
        plain("QuantizeLinear", "x s z", "q"),
        plain("DequantizeLinear", "q s z", "d"),
        plain("Cast", "q", "c", to=TensorProto.FLOAT),
        plain("Add", "c d"),
    ]
    lifted = check(qdq(nodes, [tensor("s", 0.5), tensor("z", 0, TensorProto.INT8)]), telling(0.5))
    assert sorted(kinds(lifted.model)) == ["Add", "Cast", "IntQuant", "QuantizeLinear"]
    kept = [step for step in lifted.steps if step.action == "kept"]
    assert [step.reason for step in kept] == ["its codes are read by Cast"]


def test_from_qdq_moves_of_channels_stay() -> None:
    inner = [
        plain("Transpose", "q", "r", perm=[0, 1]),
        plain("Identity", "r", "i"),
        plain("Transpose", "i", "t", perm=[0, 1]),
    ]
    lifted = check(pair([1, 2], [0, 0], middle=inner, shape=(2, 2)), np.eye(2, dtype=np.float32))
    assert "Identity" in kinds(lifted.model)
    reasons = [step.reason for step in lifted.steps]
    assert "Identity, Transpose before it may move its channels" in reasons


@pytest.mark.parametrize(
    ("attributes", "scale", "zeropt", "message"),
    [
        ({"axis": 2}, [1, 2], [0, 0], r"axis must be in \[-2, 1\].*got 2"),
        ({"axis": -3}, [1, 2], [0, 0], r"axis must be in \[-2, 1\].*got -3"),
        ({"axis": 0}, [1, 2], [0, 0], "2 scales for 3 channels"),
        ({}, [[1, 2]], [[0, 0]], r"its scale has shape \(1, 2\)"),
        ({}, [], [], r"its scale has shape \(0,\)"),
        ({}, [1, 2], [0, 0, 0], "2 scales, but zero-points of shape"),
        ({"axis": "one"}, [1, 2], [0, 0], "axis must be an integer"),
        ({"block_size": 1.5}, [1, 2], [0, 0], "block_size must be an integer"),
    ],
)
def test_from_qdq_contradictions(attributes: Any, scale: Any, zeropt: Any, message: str) -> None:
    tensors = [tensor("s", scale), tensor("z", zeropt, TensorProto.INT8)]
    nodes = [
        plain("QuantizeLinear", "x s z", "q", **attributes),
        plain("DequantizeLinear", "q s z", **attributes),
    ]
    with pytest.raises(ModelError, match=f"the_DequantizeLinear_y.*{message}"):
        Lifted(qdq(nodes, tensors, shape=(3, 2)))


def test_from_qdq_types_that_contradict() -> None:
    tensors = [tensor("s", 1), tensor("z", 0, TensorProto.INT8), tensor("o", 0, TensorProto.UINT8)]
    nodes = [plain("QuantizeLinear", "x s z", "q"), plain("DequantizeLinear", "q s o")]
    assert "type or axis of the two nodes differ" in Lifted(qdq(nodes, tensors)).steps[-1].reason
    nodes[1].input[0] = "z"
    with pytest.raises(ModelError, match="reads int8, but its zero-point is uint8"):
        Lifted(qdq(nodes, tensors))
    nodes[1] = helper.make_node("DequantizeLinear", ["q"], ["y"], name="the_DequantizeLinear")
    with pytest.raises(ModelError, match=r"the_DequantizeLinear.*must have x, a scale"):
        Lifted(qdq(nodes, tensors))


CODES = [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.INT16]
OTHERS = [TensorProto.INT32, TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.BOOL]
SHAPES = [(), (1,), (2,), (3,), (0,), (1, 2), (2, 0)]
PARAMETERS = [["s"], ["s", "z"], ["s", "z"], ["z", "s"], ["s", "z", "w"], ["s", ""], []]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_from_qdq_damaged_models(data: Any) -> None:
    """Whatever is wrong, the error is ours."""
    draw = data.draw

    def drawn(name: str, kinds_: list[int]) -> onnx.TensorProto:
        shape, kind = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(kinds_))
        return helper.make_tensor(name, kind, shape, [1] * int(np.prod(shape)))

    attribute = st.sampled_from(["axis", "block_size", "saturate", "output_dtype", "precision"])
    content = st.integers(-5, 30) | st.sampled_from(["text", 1.5])
    attributes = draw(st.dictionaries(attribute, content, max_size=2))
    parameters = st.sampled_from(PARAMETERS)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *draw(parameters)], ["q"], **attributes),
        helper.make_node(
            "DequantizeLinear", [draw(st.sampled_from("qwx")), *draw(parameters)], ["y"]
        ),
    ]
    if draw(st.booleans()):
        nodes[1].attribute.extend(nodes[0].attribute)
    tensors = [
        drawn("s", [TensorProto.FLOAT] * 4 + OTHERS),
        drawn("z", CODES + OTHERS),
        drawn("w", CODES + OTHERS),
    ]
    proto = qdq(nodes, tensors, shape=draw(st.sampled_from([(), (2,), (2, 3), ("n", 2)])))
    kinds_ = st.sampled_from([TensorProto.FLOAT] * 4 + OTHERS)
    proto.graph.input[0].type.tensor_type.elem_type = draw(kinds_)
    with suppress(ModelError):
        Lifted(proto)


DYNAMIC = '<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]> g (float[n, 4] x)'
WEIGHT = "int8[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}"
INTEGERS = {
    "DynamicQuantizeLinear": (
        f"""{DYNAMIC} => (int32[n, 3] y) <{WEIGHT}>
        {{ q, s, z = DynamicQuantizeLinear(x) y = MatMulInteger(q, w, z) }}""",
        ["run time", "run time"],
    ),
    "moved codes": (
        f"""{DYNAMIC} => (int32[n, 3] y) <{WEIGHT}, int64[2] to = {{-1, 4}}>
        {{ q, s, z = DynamicQuantizeLinear(x) r = Reshape(q, to) y = MatMulInteger(r, w, z) }}""",
        ["run time", "run time"],
    ),
    "DynamicQuantizeMatMul": (
        f"""{DYNAMIC} => (float[n, 3] y) <{WEIGHT}, float ws = {{0.5}}>
        {{ y = com.microsoft.DynamicQuantizeMatMul(x, w, ws) }}""",
        ["same bits", "run time", "run time"],
    ),
    "static scale": (
        f"""{DYNAMIC} => (int32[n, 3] y) <{WEIGHT}, float s = {{0.5}}, uint8 z = {{3}}>
        {{ q = QuantizeLinear(x, s, z) y = MatMulInteger(q, w, z) }}""",
        ["codes are read by MatMulInteger", "other nodes than a Cast"],
    ),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_from_qdq_reason_of_integer_operators(name: str) -> None:
    text, reasons = INTEGERS[name]
    converted = anybit.convert(onnx.parser.parse_model(text), to="qonnx")
    assert {step.action for step in converted.steps} <= {"kept", "MatMulInteger"}
    for step, words in zip(converted.steps, reasons, strict=True):
        assert words in step.reason


@pytest.mark.parametrize(
    ("name", "is_compiled"), [("DynamicQuantizeMatMul", True), ("DynamicQuantizeLSTM", False)]
)
def test_from_qdq_reason_names_the_compiler_where_it_helps(name: str, is_compiled: bool) -> None:
    reason = explain_kept(ir.Node("com.microsoft", name, [ir.Value(name="x")]))
    assert "run time" in reason
    assert ("anybit compile" in reason) == is_compiled
