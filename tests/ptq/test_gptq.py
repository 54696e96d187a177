# SPDX-License-Identifier: Apache-2.0
"""GPTQ against all there is to choose from, and what it does to layers of every kind."""

import itertools
import tracemalloc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from clean_checks import assert_array_bits
from float_models import NETWORKS, OPSETS, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit.ptq.algorithms import gptq as module
from anybit.ptq.algorithms.gptq import GptqRounder, round_columns
from anybit.ptq.algorithms.hessian import Moments, factorize, factorize_in_place
from anybit.ptq.algorithms.layer_runner import LayerRunner, broadcast_channels
from anybit.ptq.config import DEFAULT
from anybit.ptq.graph import matmul_form as products
from anybit.ptq.graph.matmul_form import find_matmul_form
from anybit.ptq.graph.targets import find_targets
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.ptq.specs.spec_grid import make_grid
from anybit.quant_types.spec import parse_quant_spec

Array = np.ndarray


def correlated(rows: int, terms: int, seed: int = 0) -> Array:
    """Rows of few directions, and a mean that is not 0."""
    return (
        random(rows, 3, seed=seed) @ random(3, terms, seed=seed + 1) + random(rows, terms) / 5 + 1
    )


def moments_of(x: Array) -> Moments:
    """Those of rows, of one group."""
    return Moments((x.T.astype(np.float64) @ x)[None], len(x))


def noise(x: Array, w: Array, q: Array) -> Array:
    """The squared error of the sums, for each column."""
    return np.square(x.astype(np.float64) @ (w - q).T.astype(np.float64)).sum(axis=0)


@pytest.mark.parametrize("words", ["int2", "int3", "uint2", "ternary", "bipolar", "e2m1"])
@pytest.mark.parametrize("terms", [1, 2, 4])
def test_nearly_the_best_of_all_roundings(words: str, terms: int) -> None:
    x, w = correlated(40, terms), random(60, terms, seed=5)
    grid = make_grid(parse_quant_spec(words, "weights"), np.float64(-2), np.float64(2))
    values = np.unique(quantize_to_grid(np.linspace(-3, 3, 999, dtype=np.float32), grid))
    best = np.full(len(w), np.inf)
    for each in itertools.product(values, repeat=terms):
        best = np.minimum(best, noise(x, w, np.float32(each)[None]))
    factors = factorize(moments_of(x), DEFAULT.gptq)
    found = round_columns(
        w[None], factors, lambda v, _: quantize_to_grid(v.astype(np.float32), grid)
    )[0]
    assert np.isin(found, values).all()
    assert (noise(x, w, found) >= best * (1 - 1e-6)).all()
    by_rounding = noise(x, w, quantize_to_grid(w, grid)).sum()
    if terms == 1:
        np.testing.assert_allclose(noise(x, w, found), best, rtol=1e-4, atol=1e-9)
    else:
        assert noise(x, w, found).sum() < min(0.9 * by_rounding, 1.9 * best.sum())


def test_no_error_is_larger_than_that_of_half_a_step_in_each_direction() -> None:
    """Babai's bound: sum d_i^2 / 4 for a step of 1, as long as nothing is clipped."""
    x, w = correlated(300, 100), random(20, 100, seed=5)
    moments = moments_of(x)
    factors = factorize(moments, DEFAULT.gptq)
    off = w - round_columns(w[None], factors, lambda v, _: np.rint(v))[0]
    (sums,) = moments.sums
    damped = sums + 0.1 / 3 * np.trace(sums) / 100 * np.eye(100)  # of 300 rows
    errors = np.einsum("ni,ij,nj->n", off, damped, off)
    assert (errors <= factors.diagonal.sum() / 4 * (1 + 1e-9)).all()
    assert np.square(x @ off.T).sum() < np.square(x @ (w - np.rint(w)).T).sum() / 20


def test_terms_without_correlation_are_rounded_to_nearest() -> None:
    w = random(3, 8, 100, seed=1)
    sizes = np.square(random(3, 100, seed=2)).astype(np.float64)
    sizes[1] = 0
    factors = factorize(Moments(sizes[:, None] * np.eye(100), 1000), DEFAULT.gptq)
    np.testing.assert_array_equal(round_columns(w, factors, lambda v, _: np.rint(v)), np.rint(w))


@pytest.mark.parametrize("rows", [40, 100])
def test_what_few_rows_say_is_believed_less(rows: int) -> None:
    """There is less noise on other rows than if they were as many as one would wish for."""
    directions, _ = np.linalg.qr(random(100, 100, seed=9))
    x = random(rows + 1000, 100) * np.arange(1, 101, dtype=np.float32) ** -0.7 @ directions
    w, known, others = random(20, 100, seed=5), moments_of(x[:rows]), x[rows:]
    many = Moments(known.sums, 10**6)
    dampings = [moments.damping(DEFAULT.gptq) for moments in (known, many)]
    assert dampings == [pytest.approx(10 / rows), 0.01]
    found = [
        round_columns(w[None], factorize(moments, DEFAULT.gptq), lambda v, _: np.rint(v))[0]
        for moments in (known, many)
    ]
    careful, believing = (noise(others, w, each).sum() for each in found)
    assert careful < 0.9 * believing
    assert careful < 0.6 * noise(others, w, np.rint(w)).sum()


@pytest.mark.parametrize("terms", [1, 31, 33, 200])
def test_factors_by_pieces_are_those_of_numpy(terms: int) -> None:
    x = correlated(400, terms).astype(np.float64)
    moments = np.stack([x.T @ x + np.eye(terms), np.diag(np.arange(1.0, terms + 1))])
    found = moments.copy()
    factorize_in_place(found)
    np.testing.assert_allclose(found, np.linalg.cholesky(moments), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("terms", [2, 32, 70])
def test_weights_are_rounded_one_after_the_other(terms: int) -> None:
    """The formula, term by term."""
    x, w = correlated(300, terms), random(5, terms, seed=5) * 3
    factors = factorize(moments_of(x), DEFAULT.gptq)
    order, triangle = factors.order[0], factors.triangle[0]
    wanted = np.zeros((5, terms))
    for i in reversed(range(terms)):
        off = (w - wanted)[:, order[i + 1 :]]
        wanted[:, order[i]] = np.rint(w[:, order[i]] + off @ triangle[i, i + 1 :])
    found = round_columns(w[None], factors, lambda v, _: np.rint(v))[0]
    np.testing.assert_array_equal(found, wanted)


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
def test_rows_times_columns_are_the_convolution(
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
    layer = layer_of(proto)
    product = find_matmul_form(layer)
    assert product is not None
    monkeypatch.setattr(products, "_ROWS_PER_BATCH", 5)
    rows = np.concatenate(list(product.iterate_rows(x, weight.shape, 10**6)), axis=1)
    columns = product.to_matrix(weight)
    y = np.concatenate(rows @ columns.swapaxes(1, 2), axis=1)
    wanted = np.moveaxis(anybit.load(proto).run(x)["y"], 1, -1)
    np.testing.assert_allclose(y.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)
    assert_array_bits(product.from_matrix(columns, weight.shape), weight)
    few = np.concatenate(list(product.iterate_rows(x, weight.shape, 7)), axis=1)
    assert few.shape[1] == min(7, rows.shape[1])
    assert all((row == rows[0]).all(axis=1).any() for row in few[0])
    # What stands around images is 0 also where no element becomes that.
    signs = list(product.iterate_rows(np.where(x < 0, -1.0, 1.0), weight.shape, 7))
    read = list(
        product.iterate_rows(x, weight.shape, 7, lambda each: np.where(each < 0, -1.0, 1.0))
    )
    assert_array_bits(np.concatenate(read, axis=1), np.concatenate(signs, axis=1))


def layer_of(proto: onnx.ModelProto) -> object:
    return find_targets(ir.from_proto(onnx.shape_inference.infer_shapes(proto))).layers[0]


def lstm() -> onnx.ModelProto:
    constants = {"w": random(2, 20, 16, seed=1) / 3, "r": random(2, 20, 5, seed=2) / 3}
    nodes = [
        node("LSTM", "x w r", domain="", name="n", hidden_size=5, direction="bidirectional"),
    ]
    return model(nodes, constants, inputs={"x": ["t", "n", 16]}, opsets=OPSETS)


def multiplying(kind: str, inputs: str, *shape: int, **options: object) -> onnx.ModelProto:
    terms = options.pop("read", 16)
    nodes = [node(kind, inputs, domain="", name="n", **options)]
    read = {"Conv": ["n", 16, 6, 6]}.get(kind, [16, "n"] if options.get("transA") else ["n", terms])
    read = [16, "n"] if inputs == "w x" else read
    return model(nodes, {"w": random(*shape, seed=3)}, inputs={"x": read}, opsets=OPSETS)


LAYERS = {
    "conv": (multiplying("Conv", "x w", 8, 16, 3, 3), (4, 16, 6, 6)),
    "grouped": (multiplying("Conv", "x w", 8, 4, 3, 2, group=4), (4, 16, 6, 6)),
    "depthwise": (multiplying("Conv", "x w", 32, 1, 3, 3, group=16), (4, 16, 6, 6)),
    "matmul": (multiplying("MatMul", "x w", 16, 12), (50, 16)),
    "swapped": (multiplying("MatMul", "w x", 12, 16), (16, 50)),
    "gemm": (multiplying("Gemm", "x w", 16, 12), (50, 16)),
    "turned": (multiplying("Gemm", "x w", 12, 16, transA=1, transB=1), (16, 50)),
    "lstm": (lstm(), (20, 2, 16)),
}
KINDS = ["int4", "int3 per-tensor", "uint4", "fp4_e2m1", "ternary", "bipolar", "int8 power-of-two"]


@pytest.mark.parametrize("name", LAYERS)
def test_elements_may_be_read_once_their_rows_are_taken(name: str) -> None:
    proto, shape = LAYERS[name]
    layer, x = layer_of(proto), random(*shape, seed=6)
    product, weight = find_matmul_form(layer), layer.constants[0][1]
    assert product is not None
    factors = (
        broadcast_channels(random(16, seed=7), layer) if layer.activation_axis is not None else 2.0
    )
    before = product.iterate_rows(x * factors, weight.shape, 7)
    after = product.iterate_rows(x, weight.shape, 7, lambda each: each * factors)
    assert_array_bits(np.concatenate(list(after), 1), np.concatenate(list(before), 1))


@pytest.mark.parametrize("words", [*KINDS, "mxfp4", "nvfp4", "int4 per-block 8"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_all_kinds_and_grids(name: str, words: str) -> None:
    """Values on the grid, which the quantizer leaves as they are, and less noise."""
    proto, shape = LAYERS[name]
    layer = layer_of(proto)
    x = np.float32(correlated(int(np.prod(shape)) // 16, 16))
    x = np.moveaxis(x.reshape(*np.delete(shape, shape.index(16)), 16), -1, shape.index(16))
    piece = LayerRunner(
        ir.from_proto(proto),
        layer,
        layer.activations[0],
        parse_quant_spec(words, "weights"),
        DEFAULT,
    )
    samples = [{"x": x}]
    found, *others = GptqRounder(None, None, samples).round(piece)
    np.testing.assert_array_equal(found.values, found.array)
    plain, *same = piece.round_to_nearest(None)
    assert found.array.shape == plain.array.shape
    assert [each is other for each, other in zip(others, same, strict=True)] == [True] * len(same)
    assert piece.measure_error(None, None, samples, (found, *others)) < piece.measure_error(
        None, None, samples
    )


def test_long_sums_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    proto, _ = LAYERS["matmul"]
    layer = layer_of(proto)
    x = correlated(200, 16)
    piece = LayerRunner(
        ir.from_proto(proto), layer, 0, parse_quant_spec("int3", "weights"), DEFAULT
    )
    monkeypatch.setattr(module, "_MOST_TERMS", 6)
    (found,) = GptqRounder(None, None, [{"x": x[:90]}, {"x": x[90:]}]).round(piece)
    apart = [slice(0, 5), slice(5, 10), slice(10, 16)]
    columns = find_matmul_form(layer).to_matrix(found.array)[0]
    wanted = find_matmul_form(layer).to_matrix(piece.scale_weights(None)[0])[0]
    steps = np.broadcast_to(found.grid.scale, found.array.shape).T
    for part in apart:
        step = steps[:, part.start]
        on_grid = lambda v, _, step=step: np.clip(np.rint(v / step), -3, 3) * step  # noqa: E731
        alone = round_columns(
            wanted[None, :, part], factorize(moments_of(x[:, part]), DEFAULT.gptq), on_grid
        )[0]
        np.testing.assert_allclose(columns[:, part], alone, rtol=1e-6)


def test_long_sums_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three or four matrices of one part's terms, not those of all parts."""
    monkeypatch.setattr(module, "_MOST_TERMS", 400)
    proto = multiplying("MatMul", "x w", 2000, 2, read=2000)
    piece = LayerRunner(
        ir.from_proto(proto), layer_of(proto), 0, parse_quant_spec("int4", "weights"), DEFAULT
    )
    samples = [{"x": random(40, 2000)}]
    tracemalloc.start()
    GptqRounder(None, None, samples).round(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 400**2 * 8, peak


def test_weights_alone_are_rounded_by_the_data() -> None:
    constants = {"w": random(64, 32, seed=1)}
    proto = model(
        [node("MatMul", "x w", domain="", name="n")],
        constants,
        inputs={"x": ["rows", 64]},
        opsets=OPSETS,
    )
    x = np.float32(correlated(200, 64))
    with_data = anybit.quantize(proto, x, weights="int4", activations=None)
    without = anybit.quantize(proto, weights="int4", activations=None)
    assert with_data.layers[0].activations == ""
    assert with_data.layers[0].sqnr is not None
    y = anybit.load(proto).run(x)["y"]
    errors = [
        np.square(anybit.load(each.model).run(x)["y"] - y).sum() for each in (with_data, without)
    ]
    assert errors[0] < errors[1] / 5
    assert with_data.verdict is not None
    again = anybit.quantize(proto, x, weights="int4", activations=None)
    a, b = (
        ir.to_proto(each.model).SerializeToString(deterministic=True) for each in (again, with_data)
    )
    assert a == b


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_four_bits(name: str) -> None:
    """One sample, zeros, and plenty: what was judged is what runs."""
    for data in (data_for(name), data_for(name)[:1]):
        found = anybit.quantize(NETWORKS[name](), data, weights="int4")
        assert found.verdict is not None
        assert found.verdict.sqnr > 5
    zeros = [{key: np.zeros_like(each) for key, each in data[0].items()}]
    found = anybit.quantize(NETWORKS[name](), zeros, weights="int4")
    y = anybit.load(found.model).run(data[0])
    assert all(np.isfinite(each).all() for each in y.values())
    assert all(layer.sqnr is None or layer.sqnr > 0 for layer in found.layers)


def test_channels_that_are_dead_in_the_data() -> None:
    proto, _ = LAYERS["gemm"]
    x = correlated(80, 16).astype(np.float32)
    x[:, ::3] = 0
    layer = layer_of(proto)
    piece = LayerRunner(
        ir.from_proto(proto), layer, 0, parse_quant_spec("int4", "weights"), DEFAULT
    )
    (found,) = GptqRounder(None, None, [{"x": x}]).round(piece)
    array = piece.scale_weights(None)[0]
    assert_array_bits(found.array[::3], quantize_to_grid(array, found.grid)[::3])
