# SPDX-License-Identifier: Apache-2.0
"""`anybit.diff`: what is run, and which tensors belong together."""

import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from bombs import CHAINS
from diff_models import X, layers
from places import MODELS, needs_models
from small_models import array, model, node, quantized_input, quantized_weight

import anybit
from anybit.comparison import RUNNERS, ElementDifference, Match, Outcome, diff, render_page
from anybit.errors import AnybitError, DependencyError, ModelError, OptionError
from anybit.onnx.quantizers import trace

f32 = np.float32


def test_diff_hints_at_a_rounding_mode() -> None:
    x = array([[0.25, 0.5, 0.25, 0]])
    difference = diff(quantized_input(), quantized_input(rounding_mode="HALF_UP"), x)
    assert not difference.equal
    first = difference.first
    assert first is not None
    assert (first.name, first.operator, first.node) == ("y", "IntQuant", "the_Quant")
    assert (first.elements, first.differing, first.largest, first.steps) == (4, 2, 0.5, 1)
    assert (first.step_quantizer, first.is_origin, first.matched) == ("itself", True, Match.NAME)
    assert first.samples[0] == ElementDifference((0, 0), 0.0, 0.5, 1.0)
    assert [(tensor.name, tensor.outcome) for tensor in difference.inputs] == [
        ("x", Outcome.EQUAL),
        ("scale", Outcome.EQUAL),
        ("zeropt", Outcome.EQUAL),
        ("bitwidth", Outcome.EQUAL),
    ]
    assert difference.hints == (
        "rounding_mode is ROUND in A and HALF_UP in B",
        "all 2 elements that differ: half-way between two steps; "
        "the two sides round ties differently",
    )


def test_diff_does_not_hint_at_ties_if_other_elements_differ() -> None:
    difference = diff(quantized_input(), quantized_input(rounding_mode="CEIL"), X)
    assert difference.hints == ("rounding_mode is ROUND in A and CEIL in B",)


def test_diff_hints_at_a_parameter_of_another_name() -> None:
    one, other = layers(), layers(other=3)
    other.graph.node[3].input[3] = "other"
    difference = diff(one, other, X)
    assert difference.first is not None
    assert difference.first.name == "y"
    assert difference.hints == ("bitwidth is 4 in A and 3 in B",)
    scales = array([[0.5, 0.5, 0.25, 0.25]])
    other = layers(other=scales)
    other.graph.node[3].input[1] = "other"
    expected = "scale is 0.5 in A and 0.25 in B at [0, 2] and 1 more place"
    assert expected in diff(one, other, X).hints


def test_diff_hints_at_the_reader_of_a_constant() -> None:
    difference = diff(layers(), layers(half=0.25), X)
    assert difference.first is not None
    assert difference.first.name == "half"
    assert difference.hints == ("IntQuant quantize_w reads it as its scale, and 1 more node",)


def test_diff_hints_at_stored_values() -> None:
    weights = np.linspace(-1, 1, 16, dtype=f32).reshape(4, 4)
    difference = diff(layers(w=weights), layers(w=weights + np.eye(4, dtype=f32)), X)
    assert difference.first is not None
    assert difference.first.name == "w"
    assert difference.hints == ("the stored values differ in 4 of 16 elements",)


def test_diff_notes_parameters_that_do_not_change_the_outputs() -> None:
    one, other = layers(), layers(other=5)
    other.graph.node[3].input[3] = "other"
    difference = diff(one, other, 0 * X)
    assert difference.equal
    assert difference.notes == ("y is equal with these inputs, but bitwidth is 4 in A and 5 in B",)
    difference = diff(layers(), layers("HALF_UP"), 0 * X)
    expected = "y is equal with these inputs, but rounding_mode is ROUND in A and HALF_UP in B"
    assert difference.notes == (expected,)
    assert diff(layers(), layers(), X).notes == ()


@pytest.mark.parametrize("runner", ["onnxruntime", "onnxruntime-optimized", "reference", "qonnx"])
def test_exact_models_are_equal_on_all_runners(runner: str) -> None:
    if runner == "qonnx" and importlib.util.find_spec("qonnx") is None:
        pytest.skip("qonnx is not installed")
    difference = diff(layers(), None, X, runners=("anybit", runner))
    assert difference.equal
    # The weight is folded on one side only.
    assert "wq" in [tensor.name for tensor in difference.tensors]
    if runner != "onnxruntime-optimized":
        assert [tensor.name for tensor in difference.tensors] == ["wq", "sum", "added", "y"]
        assert not difference.unmatched_a
        assert not difference.unmatched_b


def test_optimized_runner_lacks_fused_tensors() -> None:
    """Fused tensors are missing, and outputs are those of the optimized session."""
    nodes = [
        node("Conv", "x w", "c", domain=""),
        node("BatchNormalization", "c s b m v", "n", domain=""),
        node("Relu", "n", "y", domain=""),
    ]
    generator = np.random.default_rng(0)
    constants = {name: generator.uniform(0.1, 1, 8).astype(f32) for name in "sbmv"}
    constants["w"] = generator.standard_normal((8, 3, 3, 3)).astype(f32)
    proto = model(nodes, constants, inputs={"x": [1, 3, 16, 16]})
    difference = diff(proto, runners=("anybit", "onnxruntime-optimized"))
    assert difference.unmatched_a[:1] == ("c",)
    assert difference.unmatched_b == ()
    options = anybit.onnxruntime.onnxruntime.SessionOptions()
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16), dtype=f32)
    expected = anybit.onnxruntime.session(proto, session_options=options).run(None, {"x": x})[0]
    np.testing.assert_array_equal(difference["y"].b, expected)


def test_diff_refuses_unknown_and_missing_runners(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"one of anybit, compiled, .* got 'tensorrt'"):
        diff(layers(), runners=("anybit", "tensorrt"))

    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(DependencyError, match=r"needs the package qonnx.*pip install qonnx"):
        diff(layers(), runners=("qonnx", "qonnx"))


def test_diff_refuses_unknown_operators() -> None:
    proto = model([node("XnorPopcountMatMul", "x")])
    for runner in RUNNERS.keys() - {"qonnx"}:
        with pytest.raises(ModelError, match="XnorPopcountMatMul"):
            diff(proto, runners=(runner, runner))


def test_match_by_position_pairs_other_names() -> None:
    difference = diff(layers(), layers(prefix="net/"), X)
    assert difference.equal
    assert [(tensor.name, tensor.other_name, tensor.matched) for tensor in difference.tensors] == [
        ("wq", "net/wq", Match.POSITION),
        ("sum", "net/sum", Match.POSITION),
        ("added", "net/added", Match.POSITION),
        ("y", "net/y", Match.OUTPUT),
    ]


def test_match_by_position_skips_nodes_of_one_side() -> None:
    constants = {"half": 0.5, "zero": 0, "bits": 4}
    quantize = [
        node("Quant", "x half zero bits", "a", name="first"),
        node("Relu", "a", "b", domain=""),
        node("Quant", "b half zero bits", "y", name="second"),
    ]
    linear = [
        node("QuantizeLinear", "in s z", "codes", domain=""),
        node("DequantizeLinear", "codes s z", "5", domain=""),
        node("Relu", "5", "6", domain=""),
        node("Identity", "6", "7", domain=""),
        node("QuantizeLinear", "7 s z", "8", domain="", name="q2"),
        node("DequantizeLinear", "8 s z", "out", domain="", name="dq2"),
    ]
    a = model(quantize, constants)
    b = model(
        linear,
        {"s": 0.5, "z": np.zeros((), np.int8)},
        inputs={"in": [1, 4]},
        outputs=["out"],
        opsets={},
    )
    difference = diff(a, b, array([[0.3, -0.8, 1.2, 2]]))
    assert difference.equal
    assert [(tensor.name, tensor.other_name) for tensor in difference.tensors] == [
        ("a", "5"),
        ("b", "6"),
        ("y", "out"),
    ]
    assert difference.unmatched_b == ("codes", "7", "8")


def test_match_by_name_takes_numbers_only_for_the_same_kind_of_node() -> None:
    a = model([node("Relu", "x", "1", domain=""), node("Neg", "1", "y", domain="")])
    nodes = [
        node("Neg", "x", "1", domain="", name="n0"),
        node("Neg", "1", "2", domain="", name="n1"),
        node("Relu", "2", "3", domain=""),
        node("Neg", "3", "y", domain="", name="n2"),
    ]
    difference = diff(a, model(nodes), X)
    pairs = [(tensor.name, tensor.other_name) for tensor in difference.tensors]
    assert pairs == [("1", "3"), ("y", "y")]
    assert difference.equal


def test_diff_compares_constants_of_two_models() -> None:
    other = layers(b=[0.25, 0, 0, 0])
    difference = diff(layers(), other, X)
    first = difference.first
    assert first is not None
    assert (first.name, first.operator, first.made_by, first.differing) == ("b", "", "constant", 1)
    assert difference["wq"].outcome is Outcome.EQUAL
    assert not difference["added"].is_origin
    with pytest.raises(KeyError):
        difference["nothing"]


def test_diff_compares_a_weight_that_one_file_stores_quantized() -> None:
    proto, weight = quantized_weight()
    folded = anybit.int_quant(weight, 0.25, 0, 3)
    other = model([node("MatMul", "x quantized", domain="")], {"quantized": folded})
    difference = diff(proto, other, X)
    assert difference.equal
    assert [tensor.name for tensor in difference.tensors] == ["quantized", "y"]


def test_diff_compares_constant_outputs() -> None:
    proto = layers()
    proto.graph.output.append(onnx.ValueInfoProto(name="wq"))
    assert diff(proto, None, X, runners=("anybit", "onnxruntime")).equal
    constants = {"w": [1.3, 2], "one": 1, "zero": 0, "four": 4}
    proto = model([node("Quant", "w one zero four")], constants, inputs={})
    assert diff(proto, None, {}, runners=("anybit", "reference")).equal


def test_diff_of_other_shapes_is_different() -> None:
    a = model([node("Flatten", "x", domain=""), node("Relu", "x", "r", domain="")])
    b = model([node("Expand", "x shape", domain="")], {"shape": np.array([2, 4])})
    difference = diff(a, b, X)
    assert (difference["y"].shape, difference["y"].other_shape) == ((1, 4), (2, 4))
    assert (difference["y"].outcome, difference["y"].steps) == (Outcome.DIFFERENT, None)
    assert not difference["y"].same_shape
    assert "[1, 4] / [2, 4]" in render_page(difference)


def test_diff_ignores_sizes_of_one() -> None:
    record = {"x": X, "y": anybit.int_quant(X, 0.5, 0, 4).ravel()}
    assert diff(quantized_input(), record).equal


# Recorded tensors


def test_diff_compares_recorded_tensors() -> None:
    expected = diff(layers(), None, X)
    record = {"x": X, "added": expected["added"].a, "y": expected["y"].a - f32(0.5), "other": X}
    difference = diff(layers(), record)
    assert [tensor.name for tensor in difference.different] == ["y"]
    assert difference["y"].steps == 1
    assert difference.unmatched_a == ("wq", "sum")
    assert difference.unmatched_b == ("other",)
    assert difference.notes == ()


def test_diff_takes_recorded_y_for_the_output() -> None:
    proto = layers(prefix="n")
    y = diff(layers(), None, X)["y"].a
    assert diff(proto, {"x": X, "y": y})["ny"].matched is Match.OUTPUT
    assert diff(proto, {"whatever": y}, X).equal


def test_diff_cuts_recorded_rows_to_those_that_run() -> None:
    y = diff(layers(), None, X)["y"].a
    rows = {"x": np.concatenate([X, 0 * X]), "y": np.concatenate([y, y + 9])}
    difference = diff(layers(), rows)
    assert difference.equal
    assert difference.notes == ("the inputs have 2 rows; the first 1 were run",)


def test_diff_compares_recorded_codes_by_value() -> None:
    difference = diff(quantized_input(scale=1), {"x": X, "y": np.array([[0, -1, 1, 7]], np.int8)})
    assert difference.equal
    assert difference["y"].ulps is None
    assert difference["y"].other_dtype == "int8"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"y": X}, "do not hold the model's input x: pass inputs"),
        ({"x": X}, "nothing to compare"),
        ({"x": X, "y": np.array(["a"])}, "'y' holds <U1, expected numbers"),
    ],
)
def test_diff_refuses_unusable_records(record: Mapping[str, Any], message: str) -> None:
    with pytest.raises(AnybitError, match=message):
        diff(quantized_input(), record)


# Real models


@needs_models
@pytest.mark.parametrize("name", ["TFC_1W1A", "TFC_2W2A", "cnv_1w1a"])
def test_diff_of_real_models_with_exact_sums_is_equal(name: str) -> None:
    with np.load(MODELS / f"{name}.npz") as arrays:
        x = arrays["x"][:1]
    difference = diff(MODELS / f"{name}.onnx", None, x, runners=("anybit", "onnxruntime"))
    assert [tensor.name for tensor in difference.different] == []
    assert not difference.unmatched_a


@needs_models
def test_diff_of_a_real_model_with_recorded_outputs() -> None:
    with np.load(MODELS / "TFC_2W2A.npz") as arrays:
        difference = diff(MODELS / "TFC_2W2A.onnx", arrays)
    assert difference.equal
    assert len(difference.tensors) == 1


def test_diff_traces_codes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of readers along one chain of moves: each asks where its codes come from."""
    walked = []
    step = trace._find_previous_step

    def counting(value: ir.Value) -> Any:
        walked.append(value)
        return step(value)

    monkeypatch.setattr(trace, "_find_previous_step", counting)
    assert anybit.diff(CHAINS["foreign_codes"](300)).equal
    assert 0 < len(walked) < 10 * 300
