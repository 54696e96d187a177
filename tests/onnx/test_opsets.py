# SPDX-License-Identifier: Apache-2.0
"""Opsets that runtimes lack become 25 where that changes no operator."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import anybit
from anybit.errors import ModelError
from anybit.onnx import read
from anybit.onnx.graph.names import EXPORTED_NAME_KEY, get_all_names
from anybit.onnx.operators.opsets import _CHANGED, find_obstacle, lower_opset
from anybit.onnx.passes import LiftOpset, Normalize

WIDENED = {"Cast", "DequantizeLinear", "QuantizeLinear"}
FLOAT6 = getattr(TensorProto, "FLOAT6E2M3", None)
needs_float6 = pytest.mark.skipif(
    FLOAT6 is None or not hasattr(ir.DataType, "FLOAT6E2M3"), reason="no types of 6 bits"
)


def network(opset: int, *more: onnx.NodeProto) -> onnx.ModelProto:
    """Build a quantized product after further nodes."""
    scale = numpy_helper.from_array(np.float32(0.5), "s")
    tensors = [
        scale,
        helper.make_tensor("z", TensorProto.UINT8, (), [7]),
        helper.make_tensor("w", TensorProto.INT8, (4, 2), [1, -2, 3, -4, 5, -6, 7, -8]),
    ]
    nodes = [
        *more,
        helper.make_node("QuantizeLinear", [more[-1].output[0] if more else "x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"]),
        helper.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


@pytest.mark.parametrize("opset", [26, 27, 28])
def test_models_of_newer_opsets_run_as_of_25(opset: int) -> None:
    x = np.float32([[1, 2, 3, -4], [0.25, 0.75, 1e9, 0]])
    expected = anybit.load(network(25)).run(x)["y"]
    proto = network(opset)
    np.testing.assert_array_equal(anybit.load(proto).run(x)["y"], expected)
    compiled = anybit.compile(proto)
    assert "1 of 1 layer" in str(compiled.report)
    np.testing.assert_array_equal(compiled.run(x)["y"], expected)
    for to in ("qonnx", "qdq", "standard", "qcdq"):
        converted = anybit.convert(proto, to=to)
        assert converted.model.graph.opset_imports[""] == 25
        np.testing.assert_array_equal(anybit.load(converted).run(x)["y"], expected)
    assert len(anybit.inspect(proto, layers=False).summary.quantizers) == 2
    assert anybit.inspect(proto, layers=False).summary.opsets == {"": opset}


@pytest.mark.parametrize("opset", [13, 24, 25, 29])
def test_other_opsets_stay(opset: int) -> None:
    model = read(network(opset))
    assert not lower_opset(model)
    assert model.graph.opset_imports[""] == opset


@pytest.mark.parametrize(
    ("node", "lowest"),
    [
        (helper.make_node("Celu", ["x"], ["c"]), 28),
        (helper.make_node("CumProd", ["x", "one"], ["c"]), 26),
        (helper.make_node("Range", ["one", "one", "one"], ["c"]), 27),
        (helper.make_node("Relu", ["x"], ["c"]), 25),
        (helper.make_node("Celu", ["x"], ["c"], domain="other"), 25),
    ],
    ids=lambda item: getattr(item, "op_type", item),
)
def test_opsets_opset_is_the_oldest_in_which_the_operators_are_the_same(
    node: onnx.NodeProto, lowest: int
) -> None:
    proto = network(28, node)
    proto.graph.initializer.append(numpy_helper.from_array(np.int64(1), "one"))
    model = read(proto)
    assert lower_opset(model) == (lowest < 28)
    assert model.graph.opset_imports[""] == lowest
    assert not lower_opset(model)
    names = find_obstacle(model)
    assert names == (
        ""
        if lowest == 25
        else f"opset {lowest} cannot be lowered to 25: {node.op_type} is of opset {lowest}"
    )


def test_opsets_operators_inside_branches_count() -> None:
    branch = helper.make_graph(
        [helper.make_node("Celu", ["x"], ["c"])],
        "branch",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, ["n", 4])],
    )
    proto = network(
        28, helper.make_node("If", ["so"], ["i"], then_branch=branch, else_branch=branch)
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.bool_(True), "so"))
    model = read(proto)
    assert not lower_opset(model)


@needs_float6
def test_opsets_types_of_6_bits_are_not_lowered() -> None:
    proto = network(28, helper.make_node("Cast", ["x"], ["c"], to=FLOAT6))
    model = read(proto)
    Normalize()(model)
    assert model.graph.opset_imports[""] == 28
    with pytest.raises(ModelError, match=r"opset 28 cannot be lowered to 25: FLOAT6E2M3 is of"):
        anybit.load(proto)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 26, reason="onnx without newer opsets")
def test_opsets_table_names_all_operators_that_changed() -> None:
    changed: dict[int, set[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version > 25:
            changed.setdefault(schema.since_version, set()).add(schema.name)
    for opset, names in changed.items():
        assert names - WIDENED == _CHANGED[opset], "look at what the new opset changes"


@needs_float6
@pytest.mark.parametrize("name", sorted(WIDENED))
def test_opsets_pairs_and_casts_changed_by_types_of_6_bits_only(name: str) -> None:
    new, old = (onnx.defs.get_schema(name, opset) for opset in (28, 25))
    assert new.doc == old.doc
    assert [value.name for value in new.inputs] == [value.name for value in old.inputs]
    assert {key: item.default_value for key, item in new.attributes.items()} == {
        key: item.default_value for key, item in old.attributes.items()
    }
    added = {"tensor(float6e2m3)", "tensor(float6e3m2)"}
    for one, other in zip(new.type_constraints, old.type_constraints, strict=True):
        assert set(one.allowed_type_strs) - set(other.allowed_type_strs) <= added


def classifier(kind: str, axis: int, *, knows_rank: bool = True) -> onnx.ModelProto:
    """Return a model of opset 12 with a Softmax of rank 3, which the file may not tell."""
    sizes = helper.make_tensor("sizes", TensorProto.INT64, (3,), [0, 2, -1])
    more = [] if knows_rank else [helper.make_node("Neg", ["minus"], ["sizes"])]
    if not knows_rank:
        sizes = helper.make_tensor("minus", TensorProto.INT64, (3,), [0, -2, 1])
    nodes = [
        *more,
        helper.make_node("Reshape", ["x", "sizes"], ["r"]),
        helper.make_node(kind, ["r"], ["y"], name="last", axis=axis),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [sizes],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [2, -1, 1, 0])
@pytest.mark.parametrize("knows_rank", [True, False])
def test_lift_opset_keeps_softmax_over_the_last_axis(
    kind: str, axis: int, knows_rank: bool
) -> None:
    proto = classifier(kind, axis, knows_rank=knows_rank)
    lifted = read(proto)
    LiftOpset(13)(lifted)
    kinds = [node.op_type for node in lifted.graph if node.op_type not in ("Neg", "Constant")]
    assert (kinds == ["Reshape", kind]) == (axis in (2, -1))
    x = np.random.default_rng(0).normal(0, 3, (4, 6)).astype(np.float32)
    (expected,), (actual,) = (
        anybit.load(model).run(x).values() for model in (proto, ir.to_proto(lifted))
    )
    np.testing.assert_array_equal(actual, expected)


def test_lift_opset_keeps_the_names_that_the_file_gave_nodes() -> None:
    lifted = read(classifier("Softmax", 2))
    lifted.graph[-1].metadata_props[EXPORTED_NAME_KEY] = "node_Softmax_7"
    LiftOpset(13)(lifted)
    assert get_all_names(lifted.graph[-1]) == ["last", "node_Softmax_7"]
