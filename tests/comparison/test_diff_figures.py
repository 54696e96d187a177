# SPDX-License-Identifier: Apache-2.0
"""`anybit.diff`: its inputs, its tolerances, and its figures."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from diff_models import X, layers
from onnx import helper
from small_models import array, model, node, quantized_input

from anybit.comparison import Outcome, diff
from anybit.comparison.measure import Tolerance, count_floats_between, measure
from anybit.comparison.steps import QuantizationStep
from anybit.errors import DataError, ModelError, OptionError

f32 = np.float32

EXACT = Tolerance(0, 0)


# Inputs


def test_random_inputs_have_the_sizes_that_one_side_fixes() -> None:
    free = model([node("Relu", "x", domain="")], inputs={"x": ["rows", 4]})
    fixed = model([node("Relu", "z", domain="")], inputs={"z": [3, 4]})
    result = diff(free, fixed)
    assert result["y"].shape == (3, 4)
    assert result.notes == ("the inputs are random numbers (seed 0)",)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.ones((1, 5)), r"'x' must have shape \[1, 4\]"),
        ({"z": X}, "takes the inputs x; missing: x; not known: z"),
        (np.array([["a"] * 4]), "must be float32, got <U1"),
    ],
)
def test_diff_refuses_inputs_that_do_not_fit(inputs: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        diff(layers(), None, inputs)


def test_diff_refuses_models_with_different_inputs() -> None:
    two = model([node("Add", "a b", domain="")], inputs={"a": [1, 4], "b": [1, 4]})
    with pytest.raises(ModelError, match=r"different inputs: the model x; the model a, b"):
        diff(layers(), two)
    with pytest.raises(DataError, match="takes 2 inputs: pass a dict of a, b"):
        diff(two, None, X)
    swapped = model([node("Sub", "b a", domain="")], inputs={"b": [1, 4], "a": [1, 4]})
    straight = model([node("Sub", "a b", domain="")], inputs={"a": [1, 4], "b": [1, 4]})
    result = diff(straight, swapped, {"a": X, "b": 0 * X})
    assert result["y"].largest == 198  # by name, not by position


# Tolerance


def test_tolerated_steps_also_excuse_their_consequences() -> None:
    x = array([[0.25, 0.5, 0, 0]])
    follow = node("Mul", "y y", "z", domain="")
    sides = []
    for mode in ("ROUND", "HALF_UP"):
        side = quantized_input(rounding_mode=mode)
        side.graph.node.append(follow)
        side.graph.output[0].name = "z"
        sides.append(side)
    assert [tensor.name for tensor in diff(*sides, x).different] == ["y", "z"]
    result = diff(*sides, x, steps=1)
    assert result.equal
    outcomes = [tensor.outcome for tensor in result.tensors if tensor.operator]
    assert outcomes == [Outcome.TOLERATED] * 2
    assert result["y"].tolerated == 1
    assert diff(*sides, x, atol=0.5).equal
    assert not diff(*sides, x, steps=0.9).equal


def test_tolerated_steps_do_not_excuse_differences_without_a_step() -> None:
    """Without a quantizer there is no step to tolerate."""
    a = model([node("Relu", "x", domain="")])
    b = model([node("Abs", "x", domain="")])
    assert not diff(a, b, X, steps=100).equal
    assert diff(a, b, X, atol=1).equal


@pytest.mark.parametrize("option", ["steps", "atol"])
def test_diff_refuses_tolerances_that_are_not_numbers(option: str) -> None:
    for value in (-1, float("nan")):
        with pytest.raises(OptionError, match=f"{option} must be a number >= 0, got"):
            diff(layers(), **{option: value})


# Steps


def test_step_is_that_of_the_next_quantizer() -> None:
    a, b = layers(), layers()
    b.graph.node[2].op_type = "Sub"
    result = diff(a, b, X)
    assert result["added"].step_quantizer == "quantize_y"
    assert result["added"].steps == 0.5
    assert result["sum"].step_quantizer == ""


def test_step_is_per_channel() -> None:
    scale = array([[1], [4]])
    nodes = [node("Quant", "x scale zero bits")]
    constants = {"scale": scale, "zero": 0, "bits": 8}
    proto = model(nodes, constants, inputs={"x": [2, 2]})
    x = array([[1, 2], [4, 8]])
    result = diff(proto, {"x": x, "y": x + array([[1, 0], [0, 4]])})
    assert result["y"].steps == 1
    assert [sample.steps for sample in result["y"].samples] == [1, 1]


@pytest.mark.parametrize("axis", [0, -2])
def test_step_follows_the_axis_of_linear_quantizers(axis: int) -> None:
    nodes = [
        node("QuantizeLinear", "x scale zero", "q", domain="", axis=axis),
        node("DequantizeLinear", "q scale zero", domain="", axis=axis),
    ]
    constants = {"scale": array([1, 4]), "zero": np.zeros(2, np.int8)}
    proto = model(nodes, constants, inputs={"x": [2, 3]})
    x = array([[1, 2, 3], [4, 8, 12]])
    result = diff(proto, {"x": x, "y": x + array([[0, 1, 0], [4, 0, 8]]), "q": x})
    assert result["y"].steps == 2
    assert result["q"].steps == 9  # 12 where the code is 3: a step of a code is 1
    assert result["q"].step_quantizer == "itself"


def test_step_follows_the_axis_of_dynamic_quantize() -> None:
    quantize = helper.make_node(
        "DynamicQuantize", ["x", "s"], ["y"], "q", domain="anybit", qtype="per_channel", axis=1
    )
    nodes = [node("Neg", "n", "x", domain=""), quantize]
    proto = model(nodes, {"s": array([1, 4])}, inputs={"n": [3, 2]}, opsets={"anybit": 1})
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    result = diff(proto, {"n": np.zeros((3, 2), f32), "x": np.full((3, 2), 8, f32)})
    assert (result["x"].steps, result["x"].step_quantizer) == (8, "q")


def test_step_of_a_minifloat_depends_on_the_exponent() -> None:
    """Positions count the values of the format, so that binades do not matter."""
    step = QuantizationStep(np.array(0.5), np.array(3.0), np.array(7.0), quantizer="itself")
    values = 0.5 * array([0, 2**-9, 2**-6, 15, 16, 18, -18, np.inf])
    expected = [0, 1, 8, 87, 88, 89, -89, np.inf]
    np.testing.assert_array_equal(step.count_steps(values), expected)
    nodes = [node("FloatQuant", "x one four three seven")]
    proto = model(nodes, {"one": 1, "three": 3, "four": 4, "seven": 7})
    x = array([[15, 16, 1, 0]])
    assert diff(proto, {"x": x, "y": x + array([[1, 2, 0.125, 0]])})["y"].steps == 1


# Figures


def test_ulps_between_counts_floats() -> None:
    def one(a: float, b: float, dtype: Any = f32) -> int:
        return int(count_floats_between(np.array([a], dtype), np.array([b], dtype))[0])

    assert one(1, np.nextafter(f32(1), f32(2))) == 1
    assert one(-0.0, 0.0) == 0
    assert one(-1e-45, 1e-45) == 2
    assert one(1, -1) == 2 * 127 * 2**23
    assert one(np.inf, np.finfo(f32).max) == 1
    assert one(1, 1 + 2**-10, np.float16) == 1
    assert one(1, 1 + 2**-7, ml_dtypes.bfloat16) == 1
    assert one(-np.inf, np.inf, np.float64) == 2 * 0x7FF << 52
    assert one(-128, 127, np.int8) == 255
    assert one(2**64 - 1, 0, np.uint64) == 2**64 - 1
    assert one(-(2**63), 2**63 - 1, np.int64) == 2**64 - 1


def test_measure_takes_nan_and_signed_zeros_as_equal() -> None:
    a = array([np.nan, np.nan, 0, -0.0, np.inf, np.inf, 1])
    b = array([np.nan, 1, -0.0, -0.0, np.inf, -np.inf, 1])
    result = measure(a, b, QuantizationStep(np.array(0.5), quantizer="itself"), EXACT)
    assert (result.differing, result.nans, result.zero_signs) == (2, 1, 1)
    assert (result.largest, result.steps) == (np.inf, np.inf)
    assert result.ulps == 2 * 0x7F800000
    only_nan = measure(a[:2], b[:2], None, EXACT)
    assert (only_nan.ulps, only_nan.largest) == (None, np.inf)


def test_measure_ignores_a_useless_scale() -> None:
    result = measure(
        array([1, 2]), array([1, 3]), QuantizationStep(np.array(0.0), quantizer="itself"), EXACT
    )
    assert (result.steps, result.samples[0].steps, result.largest) == (None, None, 1)


def test_measure_allows_for_rounded_products_of_codes_and_scales() -> None:
    """0.1f * 3 - 0.1f * 2 is a little more than a step of 0.1f; bfloat16 misses it by more."""
    for dtype in (f32, np.float64, np.float16, ml_dtypes.bfloat16):
        scale = np.array(0.1, dtype)
        codes = np.arange(-8, 8)
        a = (codes * scale.astype(np.float64)).astype(dtype)
        step = QuantizationStep(scale.astype(np.float64), quantizer="itself")
        assert measure(a[1:], a[:-1], step, Tolerance(1, 0)).differing == 0
        assert measure(a[2:], a[:-2], step, Tolerance(1, 0)).differing == 14


def test_measure_takes_bfloat16_and_four_bit_tensors() -> None:
    nodes = [
        node("Cast", "x", "half", domain="", to=onnx.TensorProto.BFLOAT16),
        node("Cast", "half", "wide", domain="", to=onnx.TensorProto.FLOAT, name="c2"),
        node("QuantizeLinear", "wide scale zero", "codes", domain=""),
        node("DequantizeLinear", "codes scale zero", domain=""),
    ]
    proto = model(nodes, {"scale": 0.25}, opsets={"": 21}, ir_version=10)
    proto.graph.initializer.append(helper.make_tensor("zero", onnx.TensorProto.INT4, [], [0]))
    result = diff(proto, None, X, runners=("anybit", "onnxruntime"))
    assert result.equal
    kinds = {tensor.name: tensor.dtype for tensor in result.tensors}
    assert (kinds["half"], kinds["codes"]) == ("bfloat16", "int4")
    np.testing.assert_array_equal(result["codes"].a.astype(int), [[1, -3, 5, 7]])


def test_measure_distinguishes_large_integers() -> None:
    big = 2**62
    result = measure(np.array([big]), np.array([big + 1]), None, EXACT)
    assert (result.differing, result.ulps) == (1, 1)
    assert result.samples[0].b == big + 1


# Relative figures


def test_measure_relative_error_and_sqnr() -> None:
    a, b = array([[3, 0, -4, 12]]), array([[3, 0, -4, 13]])
    result = measure(a, b, None, EXACT)
    assert result.relative == 1 / 12
    assert result.sqnr == pytest.approx(10 * np.log10(169 / 1))
    assert measure(a, a, None, EXACT).sqnr == np.inf
    codes = measure(np.array([1, 2], np.int8), np.array([1, 4], np.int8), None, EXACT)
    assert (codes.relative, codes.sqnr) == (1.0, pytest.approx(10 * np.log10(5 / 4)))
    tiny = measure(np.array([3e-300]), np.array([6e-300]), None, EXACT)
    assert tiny.sqnr == 0  # no square leaves the range of floats


@pytest.mark.parametrize(
    ("a", "b"), [([0, 0], [0, 1]), ([1, 1], [1, np.nan]), ([1, np.inf], [1, 2])]
)
def test_measure_unbounded_noise(a: list[float], b: list[float]) -> None:
    result = measure(array(a), array(b), None, EXACT)
    assert (result.relative, result.sqnr) == (np.inf, -np.inf)


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, bool]
)
def test_measure_sqnr_of_any_dtype(dtype: Any) -> None:
    a, b = np.array([1, 0], dtype), np.array([1, 1], dtype)
    assert measure(a, b, None, EXACT).sqnr == 0


def test_measure_samples_the_largest_differences_ties_by_index() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        b = rng.integers(0, 4, 40).astype(f32)
        result = measure(np.zeros(40, f32), b, None, EXACT)
        order = np.argsort(-b, kind="stable")[:5]
        assert [sample.index[0] for sample in result.samples] == order.tolist()


def test_harm_is_the_noise_that_a_tensor_adds() -> None:
    """Quantizing with a coarser step does added_noise. A sum of noisy inputs does not."""
    result = diff(layers(), layers(b=[0.375, 0, 0, 0]), X)
    added_noise = {tensor.name: tensor.added_noise for tensor in result.tensors}
    noise = {tensor.name: 10 ** (-tensor.sqnr / 10) for tensor in result.tensors}
    assert added_noise["wq"] == added_noise["sum"] == 0
    assert added_noise["b"] == pytest.approx(noise["b"] ** 0.5)
    assert added_noise["added"] == 0
    assert result.ranked[0] is result.worst is result["b"]
    assert result.to_json()["ranked"][0] == "b"


def test_diff_progress_rises_to_one() -> None:
    shares: list[float] = []
    diff(layers(), progress=shares.append)
    assert shares == sorted(shares)
    assert (shares[0] > 0, shares[-1], len(set(shares)) > 4) == (True, 1.0, True)


# Nodes without inputs


def noisy(seed: float) -> onnx.ModelProto:
    """x + random numbers, which a node without inputs makes."""
    made = node("RandomNormal", "", "noise", domain="", shape=[1, 4], seed=seed)
    del made.input[:]
    return model([made, node("Add", "x noise", domain="")])


def test_diff_starts_at_a_node_without_inputs() -> None:
    result = diff(noisy(1.0), noisy(2.0), X)
    assert result.first is not None
    assert (result.first.name, result.first.is_origin, result.inputs) == ("noise", True, ())
    assert result.hints == ("seed is 1.0 in A and 2.0 in B",)


def test_measure_extended_precision_has_no_ulps() -> None:
    a = np.array([1, 2, 0], np.longdouble)
    b = a + np.array([np.finfo(np.longdouble).eps, 0, 0])
    result = measure(a, b, QuantizationStep(np.array(0.5), quantizer="itself"), EXACT)
    assert (result.differing, result.ulps) == (1, None)
    assert (
        measure(
            a, b, QuantizationStep(np.array(0.5), quantizer="itself"), Tolerance(1, 0)
        ).differing
        == 0
    )
    assert measure(a, a.copy(), None, EXACT).differing == 0
