# SPDX-License-Identifier: Apache-2.0
"""GPTQ against exhaustive search, and on all types of layers."""

import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from clean_checks import assert_array_bits
from float_models import NETWORKS, OPSETS, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit.ptq.algorithms.gptq import ColumnRounding, GptqRounder, round_columns
from anybit.ptq.algorithms.hessian import Moments, factorize, factorize_in_place
from anybit.ptq.algorithms.layer_runner import LayerRunner, broadcast_channels
from anybit.ptq.config import DEFAULT
from anybit.ptq.graph import matmul_form as products
from anybit.ptq.graph.matmul_form import find_matmul_form
from anybit.ptq.graph.targets import find_targets
from anybit.ptq.specs.quantize import quantize_to_grid, select_operator
from anybit.ptq.specs.spec_grid import make_grid
from anybit.quant_types.spec import parse_quant_spec

Array = np.ndarray
TO_INTEGERS = ColumnRounding("int_quant", {"scale": 1, "zeropt": 0, "bitwidth": 24})


def make_correlated_rows(rows: int, terms: int, seed: int = 0) -> Array:
    """Return rows of low rank with some noise and a mean other than 0."""
    return (
        random(rows, 3, seed=seed) @ random(3, terms, seed=seed + 1) + random(rows, terms) / 5 + 1
    )


def compute_moments(x: Array) -> Moments:
    """Return the second moments of rows, as one group."""
    return Moments((x.T.astype(np.float64) @ x)[None], len(x))


def measure_noise(x: Array, w: Array, q: Array) -> Array:
    """Return the squared error of the sums of each column."""
    return np.square(x.astype(np.float64) @ (w - q).T.astype(np.float64)).sum(axis=0)


@pytest.mark.parametrize("spec", ["int2", "int3", "uint2", "ternary", "bipolar", "e2m1"])
@pytest.mark.parametrize("terms", [1, 2, 4])
def test_gptq_is_near_exhaustive_search(spec: str, terms: int) -> None:
    x, w = make_correlated_rows(40, terms), random(60, terms, seed=5)
    grid = make_grid(parse_quant_spec(spec, "weights"), np.float64(-2), np.float64(2))
    values = np.unique(quantize_to_grid(np.linspace(-3, 3, 999, dtype=np.float32), grid))
    best = np.full(len(w), np.inf)
    for candidate in itertools.product(values, repeat=terms):
        best = np.minimum(best, measure_noise(x, w, np.float32(candidate)[None]))
    factors = factorize(compute_moments(x), DEFAULT.gptq)
    selected = select_operator(grid)
    arguments = {**selected.call.parameters, **selected.call.attributes}
    rounded = round_columns(w[None], factors, ColumnRounding(selected.operator.name, arguments))[0]
    assert np.isin(rounded, values).all()
    assert (measure_noise(x, w, rounded) >= best * (1 - 1e-6)).all()
    by_rounding = measure_noise(x, w, quantize_to_grid(w, grid)).sum()
    if terms == 1:
        np.testing.assert_allclose(measure_noise(x, w, rounded), best, rtol=1e-4, atol=1e-9)
    else:
        assert measure_noise(x, w, rounded).sum() < min(0.9 * by_rounding, 1.9 * best.sum())


def test_gptq_error_is_within_the_bound_of_babai() -> None:
    """Check the bound of Babai without clipping: sum d_i^2 / 4 for a step of 1."""
    x, w = make_correlated_rows(300, 100), random(20, 100, seed=5)
    moments = compute_moments(x)
    factors = factorize(moments, DEFAULT.gptq)
    off = w - round_columns(w[None], factors, TO_INTEGERS)[0]
    (sums,) = moments.sums
    damped = sums + 0.1 / 3 * np.trace(sums) / 100 * np.eye(100)  # of 300 rows
    errors = np.einsum("ni,ij,nj->n", off, damped, off)
    assert (errors <= factors.diagonal.sum() / 4 * (1 + 1e-9)).all()
    assert np.square(x @ off.T).sum() < np.square(x @ (w - np.rint(w)).T).sum() / 20


def test_gptq_rounds_uncorrelated_terms_to_nearest() -> None:
    w = random(3, 8, 100, seed=1)
    sizes = np.square(random(3, 100, seed=2)).astype(np.float64)
    sizes[1] = 0
    factors = factorize(Moments(sizes[:, None] * np.eye(100), 1000), DEFAULT.gptq)
    np.testing.assert_array_equal(round_columns(w, factors, TO_INTEGERS), np.rint(w))


@pytest.mark.parametrize("rows", [40, 100])
def test_factorize_damps_moments_of_few_rows_more(rows: int) -> None:
    """Compare noise on other rows with that of moments that claim many rows."""
    directions, _ = np.linalg.qr(random(100, 100, seed=9))
    x = random(rows + 1000, 100) * np.arange(1, 101, dtype=np.float32) ** -0.7 @ directions
    w, few, others = random(20, 100, seed=5), compute_moments(x[:rows]), x[rows:]
    many = Moments(few.sums, 10**6)
    dampings = [moments.compute_damping(DEFAULT.gptq) for moments in (few, many)]
    assert dampings == [pytest.approx(10 / rows), 0.01]
    rounded = [
        round_columns(w[None], factorize(moments, DEFAULT.gptq), TO_INTEGERS)[0]
        for moments in (few, many)
    ]
    careful, confident = (measure_noise(others, w, weights).sum() for weights in rounded)
    assert careful < 0.9 * confident
    assert careful < 0.6 * measure_noise(others, w, np.rint(w)).sum()


@pytest.mark.parametrize("terms", [1, 31, 33, 200])
def test_factorize_in_place_matches_numpy(terms: int) -> None:
    x = make_correlated_rows(400, terms).astype(np.float64)
    moments = np.stack([x.T @ x + np.eye(terms), np.diag(np.arange(1.0, terms + 1))])
    factors = moments.copy()
    factorize_in_place(factors)
    np.testing.assert_allclose(factors, np.linalg.cholesky(moments), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("terms", [2, 32, 70])
def test_round_columns_matches_the_formula(terms: int) -> None:
    """Compute the formula term by term."""
    x, w = make_correlated_rows(300, terms), random(5, terms, seed=5) * 3
    factors = factorize(compute_moments(x), DEFAULT.gptq)
    order, triangle = factors.order[0], factors.triangle[0]
    expected = np.zeros((5, terms))
    for i in reversed(range(terms)):
        off = (w - expected)[:, order[i + 1 :]]
        expected[:, order[i]] = np.rint(w[:, order[i]] + off @ triangle[i, i + 1 :])
    rounded = round_columns(w[None], factors, TO_INTEGERS)[0]
    np.testing.assert_array_equal(rounded, expected)


CONVOLUTIONS = [
    {},
    {"pads": [1, 0, 2, 3]},
    {"strides": [2, 3], "dilations": [1, 2], "pads": [2, 2, 0, 1]},
    {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"group": 6, "auto_pad": "SAME_LOWER", "strides": [3, 1]},
    {"group": 3, "auto_pad": "VALID", "dilations": [2, 2]},
]


@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_matmul_form_matches_convolution(
    options: dict[str, object], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        name: (value[: 2 * rank] if name == "pads" else (value * 2)[:rank])
        if isinstance(value, list)
        else value
        for name, value in options.items()
    }
    if "pads" in options:
        options["pads"] = ([*options["pads"]] * 2)[: 2 * rank]  # type: ignore[misc]
    kernel = (3, 2, 2)[:rank]
    weight = random(12, 6 // int(options.get("group", 1)), *kernel, seed=1)  # type: ignore[call-overload]
    sizes = (9, 8, 7)[:rank]
    nodes = [node("Conv", "x w", domain="", name="conv", **options)]
    proto = model(nodes, {"w": weight}, inputs={"x": ["rows", 6, *sizes]}, opsets=OPSETS)
    x = random(2, 6, *sizes, seed=2)
    layer = find_layer(proto)
    product = find_matmul_form(layer)
    assert product is not None
    monkeypatch.setattr(products, "_ROWS_PER_BATCH", 5)
    rows = np.concatenate(list(product.iterate_rows(x, weight.shape, 10**6)), axis=1)
    columns = product.to_matrix(weight)
    y = np.concatenate(rows @ columns.swapaxes(1, 2), axis=1)
    expected = np.moveaxis(anybit.load(proto).run(x)["y"], 1, -1)
    np.testing.assert_allclose(y.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)
    assert_array_bits(product.from_matrix(columns, weight.shape), weight)
    few = np.concatenate(list(product.iterate_rows(x, weight.shape, 7)), axis=1)
    assert few.shape[1] == min(7, rows.shape[1])
    assert all((row == rows[0]).all(axis=1).any() for row in few[0])
    # Padding stays 0, although the function maps 0 to 1.
    signs = list(product.iterate_rows(np.where(x < 0, -1.0, 1.0), weight.shape, 7))
    read = list(
        product.iterate_rows(x, weight.shape, 7, lambda values: np.where(values < 0, -1.0, 1.0))
    )
    assert_array_bits(np.concatenate(read, axis=1), np.concatenate(signs, axis=1))


def find_layer(proto: onnx.ModelProto) -> object:
    return find_targets(ir.from_proto(onnx.shape_inference.infer_shapes(proto))).layers[0]


def make_lstm() -> onnx.ModelProto:
    constants = {"w": random(2, 20, 16, seed=1) / 3, "r": random(2, 20, 5, seed=2) / 3}
    nodes = [
        node("LSTM", "x w r", domain="", name="n", hidden_size=5, direction="bidirectional"),
    ]
    return model(nodes, constants, inputs={"x": ["t", "n", 16]}, opsets=OPSETS)


def make_layer(kind: str, inputs: str, *shape: int, **options: object) -> onnx.ModelProto:
    terms = options.pop("read", 16)
    nodes = [node(kind, inputs, domain="", name="n", **options)]
    read = {"Conv": ["n", 16, 6, 6]}.get(kind, [16, "n"] if options.get("transA") else ["n", terms])
    read = [16, "n"] if inputs == "w x" else read
    return model(nodes, {"w": random(*shape, seed=3)}, inputs={"x": read}, opsets=OPSETS)


LAYERS = {
    "conv": (make_layer("Conv", "x w", 8, 16, 3, 3), (4, 16, 6, 6)),
    "grouped": (make_layer("Conv", "x w", 8, 4, 3, 2, group=4), (4, 16, 6, 6)),
    "depthwise": (make_layer("Conv", "x w", 32, 1, 3, 3, group=16), (4, 16, 6, 6)),
    "matmul": (make_layer("MatMul", "x w", 16, 12), (50, 16)),
    "swapped": (make_layer("MatMul", "w x", 12, 16), (16, 50)),
    "gemm": (make_layer("Gemm", "x w", 16, 12), (50, 16)),
    "turned": (make_layer("Gemm", "x w", 12, 16, transA=1, transB=1), (16, 50)),
    "lstm": (make_lstm(), (20, 2, 16)),
}
KINDS = ["int4", "int3 per-tensor", "uint4", "fp4_e2m1", "ternary", "bipolar", "int8 power-of-two"]


@pytest.mark.parametrize("name", LAYERS)
def test_iterate_rows_transforms_elements(name: str) -> None:
    proto, shape = LAYERS[name]
    layer, x = find_layer(proto), random(*shape, seed=6)
    product, weight = find_matmul_form(layer), layer.constants[0][1]
    assert product is not None
    factors = (
        broadcast_channels(random(16, seed=7), layer) if layer.activation_axis is not None else 2.0
    )
    before = product.iterate_rows(x * factors, weight.shape, 7)
    after = product.iterate_rows(x, weight.shape, 7, lambda rows: rows * factors)
    assert_array_bits(np.concatenate(list(after), 1), np.concatenate(list(before), 1))


@pytest.mark.parametrize("spec", [*KINDS, "mxfp4", "nvfp4", "int4 per-block 8"])
@pytest.mark.parametrize("name", LAYERS)
def test_gptq_rounds_all_layers_to_all_grids(name: str, spec: str) -> None:
    """Check that values lie on the grid and that noise is lower."""
    proto, shape = LAYERS[name]
    layer = find_layer(proto)
    x = np.float32(make_correlated_rows(int(np.prod(shape)) // 16, 16))
    x = np.moveaxis(x.reshape(*np.delete(shape, shape.index(16)), 16), -1, shape.index(16))
    runner = LayerRunner(
        ir.from_proto(proto),
        layer,
        layer.activations[0],
        parse_quant_spec(spec, "weights"),
        DEFAULT,
    )
    samples = [{"x": x}]
    rounded, *others = GptqRounder(None, None, samples).round(runner)
    np.testing.assert_array_equal(rounded.values, rounded.array)
    nearest, *same = runner.round_to_nearest(None)
    assert rounded.array.shape == nearest.array.shape
    assert [weight is other for weight, other in zip(others, same, strict=True)] == [True] * len(
        same
    )
    assert runner.measure_error(None, None, samples, (rounded, *others)) < runner.measure_error(
        None, None, samples
    )


def test_gptq_splits_long_sums() -> None:
    proto, _ = LAYERS["matmul"]
    layer = find_layer(proto)
    x = make_correlated_rows(200, 16)
    config = replace(DEFAULT, gptq=replace(DEFAULT.gptq, max_terms=6))
    runner = LayerRunner(
        ir.from_proto(proto), layer, 0, parse_quant_spec("int3", "weights"), config
    )
    (rounded,) = GptqRounder(None, None, [{"x": x[:90]}, {"x": x[90:]}]).round(runner)
    apart = [slice(0, 5), slice(5, 10), slice(10, 16)]
    columns = find_matmul_form(layer).to_matrix(rounded.array)[0]
    expected = find_matmul_form(layer).to_matrix(runner.scale_weights(None)[0])[0]
    steps = np.broadcast_to(rounded.grid.scale, rounded.array.shape).T
    for part in apart:
        scale = {"scale": steps[None, :, part.start, None]}
        on_grid = ColumnRounding("int_quant", {"zeropt": 0, "bitwidth": 3, "narrow": True}, scale)
        alone = round_columns(
            expected[None, :, part], factorize(compute_moments(x[:, part]), DEFAULT.gptq), on_grid
        )[0]
        np.testing.assert_allclose(columns[:, part], alone, rtol=1e-6)


def test_gptq_with_long_sums_needs_little_memory() -> None:
    """Check that memory holds a few matrices of one slice, not of all slices."""
    config = replace(DEFAULT, gptq=replace(DEFAULT.gptq, max_terms=400))
    proto = make_layer("MatMul", "x w", 2000, 2, read=2000)
    runner = LayerRunner(
        ir.from_proto(proto), find_layer(proto), 0, parse_quant_spec("int4", "weights"), config
    )
    samples = [{"x": random(40, 2000)}]
    tracemalloc.start()
    GptqRounder(None, None, samples).round(runner)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 400**2 * 8, peak


def test_gptq_applies_to_weights_without_quantized_activations() -> None:
    constants = {"w": random(64, 32, seed=1)}
    proto = model(
        [node("MatMul", "x w", domain="", name="n")],
        constants,
        inputs={"x": ["rows", 64]},
        opsets=OPSETS,
    )
    x = np.float32(make_correlated_rows(200, 64))
    with_data = anybit.quantize(proto, x, weights="int4", activations="float")
    without = anybit.quantize(proto, weights="int4", activations="float")
    assert with_data.layers[0].activations == ""
    assert with_data.layers[0].sqnr is not None
    y = anybit.load(proto).run(x)["y"]
    errors = [
        np.square(anybit.load(result.model).run(x)["y"] - y).sum()
        for result in (with_data, without)
    ]
    assert errors[0] < errors[1] / 5
    assert with_data.verdict is not None
    again = anybit.quantize(proto, x, weights="int4", activations="float")
    a, b = (
        ir.to_proto(result.model).SerializeToString(deterministic=True)
        for result in (again, with_data)
    )
    assert a == b


@pytest.mark.parametrize("name", NETWORKS)
def test_quantize_to_four_bits_handles_one_sample_and_zeros(name: str) -> None:
    """Quantize with many samples, with one sample, and with zeros."""
    for data in (data_for(name), data_for(name)[:1]):
        result = anybit.quantize(NETWORKS[name](), data, weights="int4")
        assert result.verdict is not None
        assert result.verdict.sqnr > 5
    zeros = [{key: np.zeros_like(array) for key, array in data[0].items()}]
    result = anybit.quantize(NETWORKS[name](), zeros, weights="int4")
    y = anybit.load(result.model).run(data[0])
    assert all(np.isfinite(array).all() for array in y.values())
    assert all(layer.sqnr is None or layer.sqnr > 0 for layer in result.layers)


def test_gptq_rounds_dead_channels_to_nearest() -> None:
    proto, _ = LAYERS["gemm"]
    x = make_correlated_rows(80, 16).astype(np.float32)
    x[:, ::3] = 0
    layer = find_layer(proto)
    runner = LayerRunner(
        ir.from_proto(proto), layer, 0, parse_quant_spec("int4", "weights"), DEFAULT
    )
    (rounded,) = GptqRounder(None, None, [{"x": x}]).round(runner)
    array = runner.scale_weights(None)[0]
    assert_array_bits(rounded.array[::3], quantize_to_grid(array, rounded.grid)[::3])
