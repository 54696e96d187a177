# SPDX-License-Identifier: Apache-2.0
"""Integer activations whose scales are computed at run time, against exact arithmetic."""

import importlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from dynamic_graphs import check_activations, make_quantizer_graph
from float_models import NETWORKS, data_for
from onnx.reference import ReferenceEvaluator
from oracle.ieee import BINARY32
from pass_checks import random
from small_models import model, node

import anybit
from anybit import ModelError, OptionError
from anybit.onnx import reference_ops
from anybit.ops.int_quant import get_codes
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.specs.dynamic_grid import DynamicIntegerGrid, make_dynamic_grid
from anybit.ptq.specs.quantize import fit_dynamic_grid, quantize_to_grid
from anybit.quant_types.spec import parse_quant_spec

LARGEST = Fraction(float(np.finfo(np.float32).max))
WIDTHS = (2, 3, 4, 6, 7, 8, 12, 16)


def run_all(grid: DynamicIntegerGrid, x: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of NumPy, of ONNX Runtime in both forms, and of the evaluator."""
    network = make_quantizer_graph(grid, [None] * x.ndim)
    standard = anybit.convert(network, to="standard").model
    evaluator = ReferenceEvaluator(ir.to_proto(network), new_ops=reference_ops())
    with np.errstate(all="ignore"):
        expected = evaluator.run(None, {"x": x})[0]
    outputs = [anybit.load(form).run(x)["y"] for form in (network, standard)]
    return [quantize_to_grid(x, grid), *outputs, expected]


def round_single(x: Fraction) -> Fraction:
    """Round to float32, and return the exact ratio."""
    return Fraction(BINARY32.nearest(*x.as_integer_ratio()))


def quantize_row(row: Sequence[float], codes: range, asymmetric: bool) -> list[float]:
    """Quantize a row of finite numbers, in exact arithmetic with a rounding per operation."""
    numbers = [Fraction(float(x)) for x in row]
    low, high = min([*numbers, Fraction(0)]), max([*numbers, Fraction(0)])
    steps = len(codes) - 1 if asymmetric else codes[-1]
    width = round_single(high - low) if asymmetric else max(high, -low)
    scale = round_single(max(width, steps * Fraction(2) ** -124) / steps)
    while round_single(scale) * steps > LARGEST:
        scale = Fraction(float(np.nextafter(np.float32(float(scale)), np.float32(0))))
    zeropt = Fraction(0)
    if asymmetric:
        shifted = round_single(codes[0] - round_single(low / scale))
        zeropt = Fraction(max(codes[0], min(round(shifted), codes[-1])))
    result = []
    for x in numbers:
        code = round_single(round_single(x / scale) + zeropt)
        code = Fraction(round(max(codes[0], min(code, codes[-1]))))
        result.append(float(round_single((code - zeropt) * scale)))
    return result


def make_edge_case_rows() -> np.ndarray:
    """Return rows of all magnitudes: ties, zeros, subnormals, and the largest numbers."""
    generator = np.random.default_rng(0)
    rows = [generator.standard_normal(24) * 2.0**exponent for exponent in (-40, -3, 0, 5, 120)]
    rows += [np.abs(rows[2]), -np.abs(rows[2]), rows[2] + 3, np.zeros(24), np.full(24, -0.0)]
    rows += [np.append(generator.integers(-127, 128, 23) / 2, 127.0)]
    rows += [generator.integers(-40, 41, 24) * 2.0**exponent for exponent in (-149, -140, -133)]
    rows += [np.append(generator.standard_normal(23), 3e38)]
    return np.stack(rows).astype(np.float32)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("form", ["signed", "narrow", "signed asymmetric", "unsigned"])
def test_dynamic_quantization_is_exact(bits: int, form: str) -> None:
    codes = get_codes(bits, form != "unsigned", form == "narrow")
    asymmetric = form in ("signed asymmetric", "unsigned")
    top = float(np.finfo(np.float32).max)
    largest = [top, 0, 1, top / 2] if asymmetric else [top, -top, 1, 0]
    x = np.concatenate([make_edge_case_rows(), [largest * 6]]).astype(np.float32)
    expected = np.array([quantize_row(row, codes, asymmetric) for row in x], np.float32)
    assert np.isfinite(expected).all()
    for output in run_all(DynamicIntegerGrid(codes, asymmetric, (1,)), x):
        np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_dynamic_quantization_gives_zeros_for_zeros_and_subnormals(asymmetric: bool) -> None:
    grid = DynamicIntegerGrid(range(-128, 128), asymmetric, (1,))
    x = np.zeros((2, 5), np.float32)
    x[1] = np.float32(2.0**-126) * np.array([-0.99, -0.7, -1e-7, 0.6, 0.999], np.float32)
    assert fit_dynamic_grid(x, grid).scale.ravel().tolist() == [2.0**-124] * 2
    for output in run_all(grid, x):
        assert not output.any()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, [np.nan, -np.inf], [3e38, -3e38]])
@pytest.mark.parametrize("codes", [range(-128, 128), range(256)])
def test_dynamic_quantization_makes_nan_of_rows_whose_width_is_not_finite(
    special: float | list[float], codes: range
) -> None:
    """Check that other rows stay finite."""
    asymmetric = codes[0] == 0
    if not asymmetric and special == [3e38, -3e38]:
        pytest.skip("symmetric integers depend on the magnitude alone")
    x = random(4, 9)
    grid = DynamicIntegerGrid(codes, asymmetric, (1,))
    expected = quantize_to_grid(x, grid)
    x[2, 4:6], expected[2] = special, np.nan
    for output in run_all(grid, x):
        np.testing.assert_array_equal(output, expected)


def quantize_signed(namespace: Any, int_quant: Any, x: Any, steps: Any, most: Any) -> Any:
    """Quantize rows by the formula, with the functions of an array library."""
    magnitude = namespace.where(namespace.isnan(x), namespace.full_like(x, np.inf), abs(x))
    width = namespace.amax(magnitude, 1, keepdims=True)
    limited = namespace.maximum(width, steps * 2.0**-124) / steps
    scale = namespace.where(namespace.isinf(width), width, namespace.minimum(limited, most))
    bits = len(bin(int(steps[0, 0]))) - 1
    return np.asarray(int_quant(x, scale, 0.0, float(bits)))


@pytest.mark.parametrize("library", ["torch", "jax"])
@pytest.mark.parametrize("bits", [3, 8])
def test_dynamic_quantization_is_the_same_in_other_libraries(library: str, bits: int) -> None:
    pytest.importorskip(library)
    namespace = importlib.import_module({"jax": "jax.numpy"}.get(library, library))
    package = importlib.import_module(f"anybit.{library}")
    grid = DynamicIntegerGrid(get_codes(bits, True, False), False, (1,))
    x = np.concatenate([make_edge_case_rows(), random(4, 24)])
    x[-3:, 2] = np.nan, np.inf, -np.inf
    # XLA multiplies by the reciprocal of a constant divisor: here each row has its own.
    rows = np.ones((len(x), 1), np.float32)
    arrays = (x, rows * np.float32(grid.steps), rows * np.float32(grid.largest_scale))
    output = quantize_signed(namespace, package.int_quant, *map(namespace.asarray, arrays))
    np.testing.assert_array_equal(output, quantize_to_grid(x, grid))


@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        ((1,), (1, 1)),
        ((2,), (2, 5, 3)),
        ((1,), (2, 5, 3)),
        ((1, 2, 3), (2, 5, 3, 3)),
        ((), (2, 5, 3)),
        ((0,), (7,)),
    ],
)
def test_dynamic_quantization_supports_all_axes_and_sizes(
    axes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    x, grid = random(*shape), DynamicIntegerGrid(range(-128, 128), False, axes)
    reduced = axes or range(len(shape))
    kept = [axis for axis in range(len(shape)) if axis not in reduced]
    expected = np.zeros_like(x)
    for index in np.ndindex(*(shape[axis] for axis in kept)):
        place: list[int | slice] = [slice(None)] * len(shape)
        for axis, position in zip(kept, index, strict=True):
            place[axis] = position
        row = x[tuple(place)]
        rounded = quantize_row(row.ravel().tolist(), grid.codes, False)
        expected[tuple(place)] = np.reshape(rounded, row.shape)
    for output in run_all(grid, x):
        np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize(
    ("name", "least_sqnr"), [("attention", 30), ("recurrent", 30), ("convolutions", 30)]
)
@pytest.mark.parametrize("spec", ["int8 dynamic", "int8 dynamic per-tensor", "uint8 dynamic"])
def test_quantize_with_dynamic_activations_is_accurate(
    name: str, spec: str, least_sqnr: float
) -> None:
    result = anybit.quantize(NETWORKS[name](), data_for(name), activations=spec)
    check_activations(result, spec, data_for(name)[0], least_sqnr)


@pytest.mark.parametrize("spec", ["int8 dynamic", "mxfp8"])
def test_quantize_with_dynamic_activations_needs_no_data(spec: str) -> None:
    result = anybit.quantize(NETWORKS["attention"](), activations=spec)
    assert result.verdict is None
    assert {layer.activations for layer in result.layers} == {spec}
    x = data_for("attention")[0]
    expected = anybit.load(NETWORKS["attention"]()).run(x)["y"]
    error = anybit.load(result.model).run(x)["y"] - expected
    assert np.square(error).sum() < 1e-2 * np.square(expected).sum()


def test_quantize_takes_dynamic_specs_of_single_layers_and_outputs() -> None:
    network = NETWORKS["attention"]()
    layers = {"query": "int4/int6 dynamic", "key": "int8/int6 dynamic"}
    result = anybit.quantize(network, activations="float", outputs="int8 dynamic", layers=layers)
    specs = {layer.name: (layer.weights, layer.activations) for layer in result.layers}
    assert specs["query"] == ("int4", "int6 dynamic")
    assert [layer.activations for layer in result.layers if layer.operator == "output"] == [
        "int8 dynamic"
    ]
    x = data_for("attention")[0]
    y = anybit.load(result.model).run(x)["y"]
    codes = y * 127 / np.abs(y).max(axis=-1, keepdims=True)
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)


@pytest.mark.parametrize("form", ["qdq", "standard", "qonnx", "compact"])
def test_convert_keeps_the_values_of_dynamic_quantizers(form: str) -> None:
    x = data_for("attention")[0]
    for spec in ("int8 dynamic", "uint5 dynamic", "uint8 dynamic per-tensor"):
        quantized = anybit.quantize(NETWORKS["attention"](), activations=spec).model
        expected = anybit.load(quantized).run(x)["y"]
        converted = anybit.convert(quantized, to=form).model
        np.testing.assert_array_equal(anybit.load(converted).run(x)["y"], expected)


def test_quantize_needs_data_if_one_activation_is_static() -> None:
    with pytest.raises(OptionError, match="activations='int8 dynamic'"):
        anybit.quantize(
            NETWORKS["attention"](), activations="uint8", layers={"query": "int8/int8 dynamic"}
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int8 dynamic"}, 'weights are constant, .*; leave out "dynamic"'),
        ({"activations": "fp8_e4m3 dynamic"}, "dynamic is for integers, not for float8_e4m3fn"),
        ({"activations": "bipolar dynamic"}, "dynamic is for integers, not for bipolar"),
        ({"activations": "mxfp8 dynamic"}, "mxfp8 defines its scales .*; leave out 'dynamic'"),
        ({"activations": "uint1 dynamic"}, "dynamic integers need 2 bits or more"),
        ({"activations": "int8 dynamic power-of-two"}, "not powers of two; use .mxint8"),
        ({"activations": "int8 dynamic per-block 32"}, "blocks of activations need an MX"),
        ({"activations": "int8 dynamic", "scales": "power-of-two"}, "use mxint8 instead"),
        (
            {"activations": "int8 dynamic", "integer_only": True},
            "integer_only=True: activations must be .*, not int8 dynamic",
        ),
        ({"activations": "int8 dynamic", "target": "finn"}, "scales must be static; leave dynamic"),
    ],
)
def test_quantize_rejects_dynamic_specs(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(NETWORKS["attention"](), data_for("attention"), **options)


@pytest.mark.parametrize(
    ("operator", "attributes", "axes"),
    [
        ("MatMul", {}, [(3,), (2,)]),
        ("Conv", {}, [(1, 2, 3), (1, 2, 3)]),
        ("ConvTranspose", {}, [(1, 2, 3), (0, 2, 3)]),
        ("Gemm", {"transB": 1}, [(1,), (1,)]),
        ("Gemm", {"transA": 1}, [(0,), (0,)]),
    ],
)
def test_dynamic_rows_hold_the_terms_of_a_sum(
    operator: str, attributes: dict[str, int], axes: list[tuple[int, ...]]
) -> None:
    rank = 2 if operator == "Gemm" else 4
    nodes = [node(operator, "x w", domain="", name="head", **attributes)]
    network = ir.from_proto(model(nodes, {}, inputs={"x": [8] * rank, "w": [8] * rank}))
    (product,) = network.graph
    layer = TargetNode(product, (0, 1), ())
    for index, expected in enumerate(axes):
        tensor = ActivationTensor(network.graph.inputs[index], [(layer, index)])
        grid = make_dynamic_grid(tensor, parse_quant_spec("int8 dynamic", "activations"))
        assert grid == DynamicIntegerGrid(range(-128, 128), False, expected)


def test_quantize_rejects_dynamic_rows_with_two_reduction_axes() -> None:
    nodes = [
        node("MatMul", "x w", "h", domain="", name="first"),
        node("MatMul", "h h", "y", domain="", name="square"),
    ]
    proto = model(nodes, {"w": random(8, 8)}, inputs={"x": [8, 8]}, opsets={"": 18})
    with pytest.raises(ModelError, match=r"axes 0 and 1; .*SPEC/int8 dynamic per-tensor"):
        anybit.quantize(proto, activations="int8 dynamic")
    anybit.quantize(proto, activations="int8 dynamic per-tensor")


@pytest.mark.parametrize("spec", ["int12 dynamic", "mxfp8", "mxint8"])
def test_compile_leaves_layers_with_block_scales_and_wide_codes_float(spec: str) -> None:
    proto = model(
        [node("MatMul", "x w", domain="", name="head")], {"w": random(64, 8)}, inputs={"x": [4, 64]}
    )
    quantized = anybit.quantize(proto, activations=spec).model
    compiled = anybit.compile(quantized)
    (layer,) = compiled.report.layers
    assert "has a scale computed at run time: quantize it with a static one" in layer.reason
    x = random(4, 64)
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(quantized).run(x)["y"])


@pytest.mark.parametrize("spec", ["int8 dynamic", "uint4 dynamic per-tensor"])
def test_quantize_scales_outlier_channels_of_dynamic_activations(spec: str) -> None:
    proto = model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(16, 8)},
        inputs={"x": ["rows", 16]},
        opsets={"": 18},
    )
    x = random(256, 16, seed=1)
    x[:, 3] *= 100
    fast = anybit.quantize(proto, x, activations=spec, effort="fast")
    default = anybit.quantize(proto, x, activations=spec)
    assert [result.layers[0].smoothed for result in (fast, default)] == [False, True]
    assert default.layers[0].tried[0].highest == np.inf
    assert default.verdict is not None
    assert fast.verdict is not None
    assert default.verdict.sqnr > fast.verdict.sqnr + 3


@pytest.mark.parametrize("budget", ["25dB", "50%bops"])
def test_quantize_searches_widths_of_dynamic_activations_in_a_budget(budget: str) -> None:
    result = anybit.quantize(
        NETWORKS["attention"](), data_for("attention"), activations="int8 dynamic", budget=budget
    )
    assert result.verdict is not None
    assert result.verdict.sqnr > 10
    assert all(layer.activations.endswith(" dynamic") for layer in result.layers)
    assert {layer.weight_bits for layer in result.layers} != {8}
