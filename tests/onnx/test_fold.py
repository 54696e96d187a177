# SPDX-License-Identifier: Apache-2.0
"""Constants are evaluated once, bit for bit as they would be at every run."""

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from bombs import CHAINS
from onnx import helper
from places import every_model, needs_models
from small_models import DOMAIN, array, kinds, model, node, quantized_weight

import anybit
from anybit.errors import ModelError
from anybit.onnx import exact_session_options, prepare, read, serialize
from anybit.onnx.folding.extents import bound_extent, measure_extent
from anybit.onnx.graph.propagation import propagates_little
from anybit.onnx.passes import FoldConstants, Normalize


def constants(result: ir.Model) -> dict[str, np.ndarray]:
    return {name: item.const_value.numpy() for name, item in result.graph.initializers.items()}


@pytest.mark.parametrize("rounding_mode", ["ROUND", "floor", "HALF_DOWN"])
def test_fold_quantized_weight(rounding_mode: str) -> None:
    proto, weight = quantized_weight(rounding_mode=rounding_mode)
    result = prepare(proto)
    assert kinds(result) == ["MatMul"]
    expected = anybit.int_quant(weight, 0.25, 0, 3, rounding_mode=rounding_mode)
    assert list(constants(result)) == ["quantized"]
    assert constants(result)["quantized"].tobytes() == expected.tobytes()


def test_fold_activations_stay() -> None:
    nodes = [
        node("Quant", "x scale zeropt bits", "a"),
        node("Quant", "w scale zeropt bits", "b"),
        node("Add", "a b", domain=""),
    ]
    weight = np.array([[0.3, 0.7, 5.2, -9.0]], np.float32)
    result = prepare(model(nodes, {"w": weight, "scale": 1, "zeropt": 0, "bits": 4}))
    assert kinds(result) == ["IntQuant", "Add"]
    assert set(constants(result)) == {"scale", "zeropt", "bits", "b"}


def test_fold_scale_and_bits_from_small_graphs() -> None:
    """Compute scale = exp(s) * 2^-k, unsqueezed, as exporters do; bits rounded and clipped."""
    nodes = [
        node("Exp", "log_scale", "e", domain=""),
        node("Pow", "two minus_k", "p", domain=""),
        node("Mul", "e p", "s", domain=""),
        node("Unsqueeze", "s axes", "scale", domain=""),
        node("Round", "raw_bits", "r", domain=""),
        node("Clip", "r two eight", "c", domain=""),
        node("Cast", "c", "bits", domain="", to=onnx.TensorProto.INT64),
        node("Constant", "", "zeropt", domain="", value_float=0.0),
        node("Quant", "w scale zeropt bits", "q"),
        node("Transpose", "q", "t", domain=""),
        node("MatMul", "x t", domain=""),
    ]
    nodes[7].ClearField("input")
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((3, 4), dtype=np.float32)
    log_scale = rng.standard_normal(3, dtype=np.float32)
    arguments = {
        "w": weight,
        "log_scale": log_scale,
        "two": 2,
        "minus_k": -3.5,
        "raw_bits": 3.6,
        "eight": 8,
        "axes": np.array([1]),
    }
    proto = model(nodes, arguments, outputs=["y", "scale", "bits"])
    proto.graph.output[2].type.tensor_type.elem_type = onnx.TensorProto.INT64
    result = prepare(proto)
    assert kinds(result) == ["MatMul"]
    standard = model(nodes[:7], arguments, inputs={}, outputs=["scale", "bits"])
    standard.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    session = onnxruntime.InferenceSession(standard.SerializeToString(), exact_session_options())
    scale, bits = session.run(None, {})
    actual = constants(result)
    assert actual["scale"].tobytes() == scale.tobytes()
    assert actual["bits"] == bits == 4
    assert actual["t"].tobytes() == anybit.int_quant(weight, scale, 0, 4).T.tobytes()


def test_fold_chains_of_quantizers_and_drops() -> None:
    nodes = [
        node("BipolarQuant", "w scale", "a"),
        node("Trunc", "a scale zeropt bits bits", "b"),
        node("MatMul", "x b", domain=""),
    ]
    weight = np.eye(4, dtype=np.float32)
    result = prepare(model(nodes, {"w": weight, "scale": 0.5, "zeropt": 0, "bits": 8}))
    assert list(constants(result)) == ["b"]


def test_fold_optional_inputs_and_attributes_reach_the_operator() -> None:
    nodes = [
        node("FloatQuant", "w one four three seven largest", "q", has_inf=1, rounding_mode="ceil"),
        node("MatMul", "x q", domain=""),
    ]
    weight = np.linspace(-500, 500, 8, dtype=np.float32).reshape(4, 2)
    arguments = {"w": weight, "one": 1, "four": 4, "three": 3, "seven": 7, "largest": 448}
    actual = constants(prepare(model(nodes, arguments)))
    expected = anybit.float_quant(weight, 1, 4, 3, 7, 448, rounding_mode="CEIL")
    assert actual["q"].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("bitwidth", "message"),
    [(0, "got 0"), (-1, "got -1"), (2.5, r"got 2\.5"), (np.nan, "got nan")],
)
def test_fold_bad_constants_name_the_node(bitwidth: float, message: str) -> None:
    proto, _ = quantized_weight(bitwidth)
    with pytest.raises(ModelError, match=f"node 'the_Quant'.*bitwidth.*{message}"):
        prepare(proto)


def test_fold_shapes_that_do_not_broadcast() -> None:
    proto, _ = quantized_weight(np.full(7, 4, np.float32))
    with pytest.raises(ModelError, match=r"node 'the_Quant'.*bitwidth.*\(7,\)"):
        prepare(proto)


def test_fold_source_is_not_changed() -> None:
    proto, _ = quantized_weight()
    before = proto.SerializeToString(deterministic=True)
    prepare(proto)
    assert proto.SerializeToString(deterministic=True) == before
    source = read(proto)
    prepare(source)
    assert kinds(source) == ["Quant", "MatMul"]


def test_fold_constant_output_stays_an_output() -> None:
    nodes = [node("Quant", "w scale zeropt bits")]
    arguments = {"w": [1.3], "scale": 1, "zeropt": 0, "bits": 4}
    result = prepare(model(nodes, arguments, inputs={}))
    assert [value.name for value in result.graph.outputs] == ["y"]
    assert constants(result)["y"] == [1]


def test_fold_declared_shapes_are_constants() -> None:
    """Flatten as older exporters do: Shape -> Gather -> Concat -> Reshape."""
    nodes = [
        node("Mul", "x scale", "m", domain=""),
        node("Quant", "m scale zeropt bits", "q"),
        node("Shape", "q", "s", domain=""),
        node("Gather", "s zero", "g", domain=""),
        node("Concat", "g minus_one", "c", domain="", axis=0),
        node("Reshape", "q c", domain=""),
    ]
    arguments = {
        "scale": 1,
        "zeropt": 0,
        "bits": 4,
        "zero": np.array([0]),
        "minus_one": np.array([-1]),
    }
    result = prepare(model(nodes, arguments, inputs={"x": [2, 3, 4]}))
    assert kinds(result) == ["Mul", "IntQuant", "Reshape"]
    np.testing.assert_array_equal(constants(result)["c"], [2, -1])
    assert "Shape" in kinds(prepare(model(nodes, arguments, inputs={"x": ["n", 3, 4]})))


def huge(name: str, **constants_: Any) -> onnx.ModelProto:
    inputs = " ".join(constants_)
    nodes = [node(name, inputs, "h", domain=""), node("Add", "x h", domain="")]
    return model(nodes, {key: array(value) for key, value in constants_.items()})


@pytest.mark.parametrize(
    "proto",
    [
        huge("ConstantOfShape", shape=np.array([2**30, 2**30])),
        huge("Expand", one=1, shape=np.array([2**60])),
        huge("Mul", column=np.ones((2**15, 1), np.float32), row=np.ones((1, 2**15), np.float32)),
        huge("Gather", data=np.ones((1, 2**12), np.float32), indices=np.zeros(2**20, np.int64)),
    ],
    ids=["ConstantOfShape", "Expand", "Mul", "Gather"],
)
def test_fold_huge_results_are_not_made(proto: onnx.ModelProto) -> None:
    tracemalloc.start()
    try:
        assert len(kinds(prepare(proto))) == 2
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()


def test_fold_doubling_ends() -> None:
    """Double the constants with every pair of Concats: forty would fill any memory."""
    nodes, last = [], "a b"
    for index in range(40):
        for item in "pq":
            nodes.append(node("Concat", last, f"{item}{index}", domain="", axis=0))
        last = f"p{index} q{index}"
    nodes.append(node("Concat", last, domain="", axis=0))
    result = prepare(model(nodes, {"a": [1], "b": [2]}, inputs={}))
    assert sum(constant.size for constant in constants(result).values()) < 2**25


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.int8])
def test_fold_budget_counts_bytes_in_all_passes_together(kind: type) -> None:
    nodes = [node("Concat", f"v{i} v{i}", f"v{i + 1}", domain="", axis=0) for i in range(40)]
    nodes += [
        node("Quant", "x scale zeropt bits", "q"),
        node("Cast", "v40", "f", domain="", to=onnx.TensorProto.FLOAT),
        node("ReduceSum", "f", "sum", domain="", keepdims=0),
        node("Mul", "q sum", domain=""),
    ]
    proto = model(nodes, {"v0": np.ones(1, kind), "scale": 1, "zeropt": 0, "bits": 8})
    converted = anybit.convert(proto, to="qdq", runtime="any").model
    assert 2**20 < sum(constant.nbytes for constant in constants(converted).values()) <= 2**26


def test_fold_lists_of_constants_count_as_many_elements() -> None:
    nodes = [node("Constant", "", "v0", domain="", value_ints=[1] * 2**16, name="long")]
    nodes += [node("Concat", f"v{i} v{i}", f"v{i + 1}", domain="", axis=0) for i in range(9)]
    result = prepare(model(nodes, outputs=["v9"]))
    assert "Concat" in kinds(result)
    assert sum(constant.nbytes for constant in constants(result).values()) <= 2**26


@pytest.mark.parametrize(
    ("kind", "arrays"),
    [
        ("ConstantOfShape", [[-1, 2**40]]),  # a product below zero would make room for others
        ("Expand", [[1], [-1, 2**40]]),
        ("ConstantOfShape", []),
        ("Expand", [[1]]),
        ("Gather", [[1]]),
        ("CastLike", []),
        ("Add", [[1, 2], [1, 2, 3]]),
    ],
)
def test_fold_invalid_nodes_have_no_extent(kind: str, arrays: list[list[int]]) -> None:
    inputs = [ir.Value(name=f"v{at}") for at in range(len(arrays))]
    invalid = ir.Node("", kind, inputs)
    assert bound_extent(invalid, [measure_extent(np.array(item)) for item in arrays]) is None


def test_fold_operators_can_stay() -> None:
    nodes = [
        node("Mul", "half half", "scale", domain=""),
        node("Quant", "w scale zeropt bits", "q"),
        node("MatMul", "x q", domain=""),
    ]
    arguments = {"w": np.eye(4, dtype=np.float32), "half": 0.5, "zeropt": 0, "bits": 4}
    result = read(model(nodes, arguments))
    Normalize()(result)
    FoldConstants(operators=False)(result)
    assert kinds(result) == ["IntQuant", "MatMul"]
    assert constants(result)["scale"] == 0.25


def test_fold_large_tensors_travel_beside_the_message() -> None:
    weight = np.arange(4 * 65536, dtype=np.float32).reshape(4, -1)
    result = prepare(model([node("MatMul", "x w", domain="")], {"w": weight}))
    data, external = serialize(result)
    assert len(data) < 1000
    assert external["w"].tobytes() == weight.tobytes()
    assert constants(result)["w"].shape == weight.shape  # the model still has it


def test_fold_external_data_stay_on_disk(tmp_path: Any) -> None:
    proto = model([node("MatMul", "x w", domain="")], {"w": np.ones((4, 65536), np.float32)})
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    _, external = serialize(prepare(tmp_path / "m.onnx"))
    memory = external["w"]
    while isinstance(memory, np.ndarray):
        memory = memory.base
    assert memory is not None, "a copy"


def test_subgraphs_are_folded() -> None:
    inner = helper.make_graph(
        [node("Quant", "w scale zeropt bits", "q"), node("Add", "x q", "z", domain="")],
        "inner",
        [],
        [helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)],
    )
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)
    arguments = {"w": [0.3], "scale": 1, "zeropt": 0, "bits": 4}
    proto = model([branch], arguments, inputs={"x": [1]})
    proto.graph.input.append(helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []))
    assert kinds(prepare(proto)) == ["If", "Add", "Add"]


@needs_models
@every_model
def test_fold_real_weights(path: Any) -> None:
    result = prepare(path)
    for item in result.graph:
        if item.domain == DOMAIN:
            assert not item.inputs[0].is_initializer(), f"{item.name} quantizes a constant still"


def doubled(count: int) -> onnx.ModelProto:
    """x times the sum of a vector, which is the vector before it, twice, and so on."""
    nodes = [node("Concat", f"v{i} v{i}", f"v{i + 1}", domain="", axis=0) for i in range(count)]
    nodes.append(node("ReduceSum", f"v{count}", "all", domain="", keepdims=0))
    nodes.append(node("Mul", "x all", "y", domain=""))
    return model(nodes, {"v0": np.ones(1, np.float32)})


def test_fold_rounds_have_one_budget_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise what one round adds lets the next add four times as much."""
    monkeypatch.setattr("anybit.onnx.passes.fold_constants._ROOM", 2**8)
    assert kinds(anybit.clean(doubled(4)).model) == ["Mul"]
    assert "Concat" in kinds(anybit.clean(doubled(12)).model)


def test_fold_inference_skips_long_float_vectors() -> None:
    """ONNX's data propagation does, one element at a time."""
    assert propagates_little(read(doubled(4)))
    assert not propagates_little(read(doubled(26)))


def test_fold_outputs_are_not_walked_through_once_per_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Take linear time for thousands of outputs, as comparisons have."""
    model = read(CHAINS["constants"](300))
    model.graph.outputs.extend(node.outputs[0] for node in model.graph if node.op_type == "Neg")
    outputs, looked_at = type(model.graph.outputs), []
    get = outputs.__getitem__

    def counting(self: Sequence[ir.Value], at: int) -> ir.Value:
        looked_at.append(at)
        return get(self, at)

    monkeypatch.setattr(outputs, "__getitem__", counting)
    FoldConstants()(model)
    assert [node.op_type for node in model.graph] == ["Add"]
    assert len(model.graph.outputs) == 301
    assert len(looked_at) < 20 * len(model.graph.outputs)
