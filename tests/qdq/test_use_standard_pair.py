# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear of ONNX Runtime's domain are those of ONNX."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_models import outputs

import anybit
from anybit.onnx import read
from anybit.onnx.passes import InferShapes, Normalize, UseStandardPair

DOMAIN = "com.microsoft"
X = np.linspace(-3, 3, 40, dtype=np.float32).reshape(5, 8)


def network(
    activation: int, weight: int, opset: int, *, per_axis: bool = False, **attributes: Any
) -> onnx.ModelProto:
    """Two quantized layers with pairs of ONNX Runtime's domain, whose float32 sums are exact."""
    rng = np.random.default_rng(2)
    low, high = (-8, 8) if weight in (TensorProto.INT4, TensorProto.INT8) else (0, 16)
    tensors = [
        numpy_helper.from_array(np.float32(0.0625), "s"),
        helper.make_tensor("z", activation, (), [3]),
    ]
    nodes, x = [], "x"
    for index, width in enumerate((6, 4)):
        shape = (8 if index == 0 else 6, width)
        scales = rng.choice(np.float32([0.125, 0.25]), width if per_axis else ())
        zeropts = np.zeros(scales.shape, int)
        tensors += [
            helper.make_tensor(f"w{index}", weight, shape, rng.integers(low, high, shape).ravel()),
            numpy_helper.from_array(scales, f"ws{index}"),
            helper.make_tensor(f"wz{index}", weight, scales.shape, zeropts.ravel()),
        ]
        axis = {"axis": 1} if per_axis else {}
        layer = [
            ("QuantizeLinear", [x, "s", "z"], f"q{index}", attributes),
            ("DequantizeLinear", [f"q{index}", "s", "z"], f"d{index}", attributes),
            (
                "DequantizeLinear",
                [f"{name}{index}" for name in ("w", "ws", "wz")],
                f"v{index}",
                axis,
            ),
        ]
        nodes += [
            helper.make_node(kind, inputs, [output], domain=DOMAIN, **arguments)
            for kind, inputs, output, arguments in layer
        ]
        x = f"y{index}"
        nodes.append(helper.make_node("MatMul", [f"d{index}", f"v{index}"], [x]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["n", 4])],
        tensors,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def domains(model: Any) -> set[str]:
    return {node.domain for node in model.graph}


@pytest.mark.parametrize(
    ("activation", "weight", "opset", "needed"),
    [
        (TensorProto.UINT8, TensorProto.INT8, 13, 10),
        (TensorProto.INT16, TensorProto.INT8, 17, 21),
        (TensorProto.UINT8, TensorProto.INT4, 17, 21),
        (TensorProto.UINT16, TensorProto.UINT4, 21, 21),
    ],
)
def test_use_standard_pair_normalize_renames_available_types(
    activation: int, weight: int, opset: int, needed: int
) -> None:
    model = read(network(activation, weight, opset))
    Normalize()(model)
    renamed = needed <= opset
    kinds = {
        node.domain for node in model.graph if node.inputs[0] and "q" in str(node.inputs[0].name)
    }
    assert kinds == {"" if renamed or activation == TensorProto.UINT8 else DOMAIN}
    assert model.graph.opset_imports[""] == opset
    assert not Normalize()(model).modified


@pytest.mark.parametrize("activation", [TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16])
@pytest.mark.parametrize("weight", [TensorProto.INT8, TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("to", ["qdq", "standard", "portable"])
def test_convert_writes_standard_pairs(activation: int, weight: int, to: str) -> None:
    proto = network(activation, weight, 17, per_axis=weight == TensorProto.INT8)
    (expected,) = outputs(proto, {"x": X})
    converted = anybit.convert(proto, to=to)
    assert domains(converted.model) == {""}
    stored = to == "qdq" and weight != TensorProto.INT8
    wide = activation != TensorProto.UINT8 or stored
    assert converted.model.graph.opset_imports == {"": 21 if wide else 17}
    np.testing.assert_array_equal(anybit.load(converted).run(X)["y1"], expected)
    np.testing.assert_array_equal(anybit.load(proto).run(X)["y1"], expected)


def test_convert_keeps_the_pair_where_the_opset_is_limited() -> None:
    proto = network(TensorProto.INT16, TensorProto.INT8, 17)
    converted = anybit.convert(proto, to="qdq", opset_limit=20)
    assert converted.model.graph.opset_imports[""] == 17
    kept = {step.operator for step in converted.steps if step.action == "kept"}
    assert kept == {"com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear"}


def test_convert_keeps_the_pair_of_a_model_that_cannot_be_lifted() -> None:
    """Hardmax over more than one axis means something else from opset 13 on."""
    proto = network(TensorProto.INT16, TensorProto.INT8, 12)
    proto.graph.node.append(helper.make_node("Hardmax", ["y1"], ["y"], axis=0))
    proto.graph.output[0].name = "y"
    model = read(proto)
    InferShapes()(model)
    before = [(node.domain, node.op_type) for node in model.graph]
    assert not UseStandardPair(25)(model).modified
    assert [(node.domain, node.op_type) for node in model.graph] == before
    assert model.graph.opset_imports[""] == 12


@pytest.mark.parametrize("opset", [13, 17])
def test_shapes_are_inferred_after_the_pair(opset: int) -> None:
    model = read(network(TensorProto.INT16, TensorProto.INT4, opset))
    InferShapes()(model)
    shapes = {str(value.name): value for node in model.graph for value in node.outputs}
    assert [str(size) for size in shapes["y0"].shape or ()] == ["n", "6"]
    assert shapes["q1"].dtype is not None
    assert shapes["q1"].dtype.name == "INT16"
    assert [str(size) for size in shapes["v1"].shape or ()] == ["6", "4"]


def test_use_standard_pair_compile_takes_layers_between_pairs_of_onnx_runtime() -> None:
    proto = network(TensorProto.UINT8, TensorProto.INT4, 17)
    compiled = anybit.compile(proto)
    assert "2 of 2 layers" in str(compiled.report)
    np.testing.assert_array_equal(compiled.run(X)["y1"], anybit.load(proto).run(X)["y1"])


def test_use_standard_pair_block_size_of_zero_is_dropped_before_opset_21() -> None:
    model = read(network(TensorProto.UINT8, TensorProto.INT8, 17, block_size=0, axis=1))
    Normalize()(model)
    assert domains(model) == {""}
    assert all("block_size" not in node.attributes for node in model.graph)


def test_use_standard_pair_zero_points_of_32_bits_stay_with_onnx_runtime() -> None:
    """ONNX has none for int32."""
    tensors = [
        helper.make_tensor("w", TensorProto.INT32, (1, 2), [5, 7]),
        numpy_helper.from_array(np.float32(0.5), "s"),
        helper.make_tensor("z", TensorProto.INT32, (), [2]),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], domain=DOMAIN),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    value = helper.make_tensor_value_info
    shape = ["n", 2]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
        tensors,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    model = read(helper.make_model(graph, opset_imports=imports, ir_version=10))
    Normalize()(model)
    assert model.graph[0].domain == DOMAIN
