# SPDX-License-Identifier: Apache-2.0
"""Functions of accumulators that fall and rise, as piecewise constant epilogues."""

import numpy as np
import onnx
import pytest
from text_models import parse

import anybit
from anybit.compiler.partition.element_functions import AddConstant, ElementFunction, NodeChain
from anybit.compiler.partition.expressions import Accumulators, IntegerRange
from anybit.compiler.program import program as p
from anybit.compiler.program.encoding import encode, pack_weights
from anybit.compiler.program.network import Network
from anybit.compiler.program.reference import apply_epilogue
from anybit.compiler.requantize import piecewise
from anybit.compiler.requantize.epilogue import requantize_piecewise
from anybit.onnx.passes import InferShapes
from anybit.onnx.preparation import prepare_for_analysis
from anybit.quant_types.grids import TensorGrid

GRID = TensorGrid(float(np.float32(0.02)), -20, 1, 256)
SWISH = "g = Sigmoid(x) d = Mul(x, g)"
GELU = "a = Mul(x, k) e = Erf(a) o = Add(e, one) m = Mul(x, o) d = Mul(m, half)"
REACH = np.array([2**15, 2**17, 40_000])


def function_of(body):
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[n, 3] x) => (float[n, 3] q)'
        " <float k = {0.70710677}, float one = {1}, float half = {0.5}, float s = {0.02},"
        " float top = {-0.12}, float low = {-0.4},"
        f" uint8 z = {{20}}> {{ {body} i = QuantizeLinear(d, s, z) q = DequantizeLinear(i, s, z) }}"
    )
    model = prepare_for_analysis(proto)
    InferShapes()(model)
    x, y = model.graph.inputs[0], model.graph.outputs[0]
    chain = NodeChain(model, tuple(model.graph), (x,), y, 2, 1)
    bias = AddConstant(np.float32([0, 0.3, -1]))
    return ElementFunction((bias, chain), monotone=False, uniform=False)


def sums_of(slack=0.0):
    reach = IntegerRange(np.array([-(2**15), -(2**16), 9]), REACH)
    return Accumulators(np.float32([3e-4, 1e-4, -2e-4]), reach, np.full(3, slack))


def indices_of(function, sums, off=0.0):
    points = np.minimum(sums.reach.lowest + np.arange(sums.reach.longest)[:, None], REACH)
    return points, GRID.index(function((sums.values(points) + off).astype(np.float32)))


@pytest.mark.parametrize(
    "body",
    [SWISH, GELU, *("d = Gelu(x)", "d = HardSwish(x)", "d = Mul(x, x)", "d = Clip(x, low, top)")],
)
def test_piecewise_equals_function_everywhere(body):
    function, sums = function_of(body), sums_of()
    levels = 15 if "low" in body else GRID.levels  # few are compared faster
    result = requantize_piecewise(function, GRID.index, levels, sums)
    assert isinstance(result.epilogue, p.Piecewise) == (levels == GRID.levels)
    points, expected = indices_of(function, sums)
    np.testing.assert_array_equal(apply_epilogue(result.epilogue, points, levels), expected)
    assert result.steps == np.count_nonzero(np.diff(expected, axis=0))
    assert (result.risks, result.more_risks) == ((), False)


@pytest.mark.parametrize("limit", [piecewise._MOST_FOR_RISKS, 1000])
def test_piecewise_lists_risks(monkeypatch, limit):
    """List all accumulators at risk, or the nearest ones and that there are more."""
    monkeypatch.setattr(piecewise, "_MOST_FOR_RISKS", limit)
    function, sums, random = function_of(SWISH), sums_of(4e-4), np.random.default_rng(0)
    result = requantize_piecewise(function, GRID.index, GRID.levels, sums)
    points, expected = indices_of(function, sums)
    moved = np.zeros(points.shape, bool)
    for _ in range(6):
        moved |= (
            indices_of(function, sums, random.uniform(-4e-4, 4e-4, points.shape))[1] != expected
        )
    rows, channels = np.nonzero(moved)
    seen = set(zip(channels.tolist(), points[rows, channels].tolist(), strict=True))
    assert result.more_risks == (limit == 1000)
    assert result.more_risks or (len(seen) > 500 and seen <= set(result.risks))


def test_piecewise_of_one_code_has_no_risks():
    """Search no intervals where the first ones leave none."""
    result = requantize_piecewise(
        function_of("d = Clip(x, half, half)"), GRID.index, GRID.levels, sums_of(4e-4)
    )
    assert (result.risks, result.more_risks) == ((), False)


def test_piecewise_needs_bounds_and_distant_steps():
    sums = sums_of()
    for body in ("d = Sin(x)", "a = Mul(x, k) b = Sin(a) d = Mul(a, b)"):
        assert requantize_piecewise(function_of(body), GRID.index, GRID.levels, sums) is None
    many = function_of("a = Mul(x, x) b = Floor(a) c = Sub(a, b) d = Mul(c, half)")
    assert requantize_piecewise(many, GRID.index, GRID.levels, sums) is None


def make_swish(nodes, pads=0):
    """Return a model of two convolutions with nodes from h to d between them."""
    random = np.random.default_rng(0)
    constants = {"s": 0.0625, "t": 0.015625, "z": 20, "none": 0, "b": 8}
    for name, shape in (("w", (40, 8, 3, 3)), ("v", (3, 40, 1, 1))):
        constants[name] = (random.integers(-127, 128, shape) * 0.015625).astype(np.float32)
    return parse(
        f"""g (float[n, 8, 9, 9] x) => (float[n, 3, {7 + 2 * pads}, {7 + 2 * pads}] y) {{
            wq = Quant(w, t, none, b)
            vq = Quant(v, t, none, b)
            xq = Quant<signed: int = 0>(x, s, z, b)
            h = Conv<pads = [{pads}, {pads}, {pads}, {pads}]>(xq, wq)
            {nodes}
            dq = Quant<signed: int = 0>(d, s, z, b)
            y = Conv(dq, vq)
        }}""",
        constants,
        version=1,
    )


def assert_equals_graph(compiled, proto):
    x = np.random.default_rng(1).normal(2, 3, (3, 8, 9, 9)).astype(np.float32)
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])


@pytest.mark.parametrize("pads", [0, 1])
def test_swish_keeps_network_in_one_region(level, pads):
    proto = make_swish("g = Sigmoid(h) d = Mul(h, g)", pads)
    compiled = anybit.compile(proto)
    assert len(compiled.report.programs) == 1
    assert compiled.report.layers[0].epilogue == "Piecewise"
    assert_equals_graph(compiled, proto)


def test_swish_of_codes_is_a_lookup(level):
    # That takes less time than pieces of accumulators.
    proto = make_swish("hq = Quant(h, s, none, b) d = HardSwish(hq)")
    compiled = anybit.compile(proto)
    (program,) = compiled.report.programs
    assert sum(isinstance(instruction, p.Lookup) for instruction in program.instructions) == 1
    assert compiled.report.layers[0].epilogue in ("Affine", "Rounded")
    assert_equals_graph(compiled, proto)


def test_pieces_next_to_each_other_are_searched(level):
    """Rounding makes codes alternate where a tie is next to the minimum of the function."""
    random = np.random.default_rng(0)
    # The minimum of the function is -0.27846455; its tie is the twelfth below zero.
    constants = {"s": 2.0**-10, "t": 2.0**-8, "low": -1.278, "u": 0.27846455 / 12.5}
    constants |= {"z": 20, "none": 0, "b": 8}
    for name, shape in (("w", (40, 8, 3, 3)), ("v", (3, 40, 1, 1))):
        constants[name] = (random.integers(-127, 128, shape) * 2.0**-8).astype(np.float32)
    proto = parse(
        """g (float[n, 8, 9, 9] x) => (float[n, 3, 7, 7] y, float[n, 40, 7, 7] dq) {
            wq = Quant(w, t, none, b)
            vq = Quant(v, t, none, b)
            xq = Quant<signed: int = 0>(x, s, none, b)
            h = Conv(xq, wq)
            a = Add(h, low)
            g = Sigmoid(a)
            d = Mul(a, g)
            dq = Quant<signed: int = 0>(d, u, z, b)
            y = Conv(dq, vq)
        }""",
        constants,
        version=1,
    )
    compiled = anybit.compile(proto)
    assert compiled.report.layers[0].epilogue == "Piecewise"
    x = np.abs(random.normal(0, 0.01, (200, 8, 9, 9))).astype(np.float32)
    result, expected = compiled.run(x), anybit.load(proto).run(x)
    np.testing.assert_array_equal(result["dq"], expected["dq"])


@pytest.mark.parametrize(("clusters", "fast"), [(1, True), (40, False)])
def test_pieces_are_fast_with_few_clusters_of_steps(clusters, fast):
    first = np.arange(64) * 2**12
    ends = first[:: 64 // clusters][:clusters, None] + [5, 6, 7]
    first = np.sort(np.append(first, ends))
    index = 100 + np.abs(np.arange(len(first)) - 20)
    pieces = piecewise.PiecewiseConstant(1, np.zeros(len(first), int), first, index)
    assert pieces.is_fast == fast


def make_swish_pieces(channels):
    """Return the pieces of codes after Swish, for sums with a scale per channel."""
    sums = np.arange(-(2**15), 2**15)
    starts, entries = np.full((2, channels, 300), 2**31 - 1)
    for channel in range(channels):
        x = sums * 3e-4 * (1 + channel / channels)
        codes = np.clip(np.rint(x / (1 + np.exp(-x)) / 0.02) + 20, 0, 255)
        first = np.append(0, np.flatnonzero(np.diff(codes)) + 1)
        starts[channel, : len(first) - 1] = sums[first[1:]]
        entries[channel] = codes[-1]
        entries[channel, : len(first)] = codes[first]
    return p.Piecewise(starts[:, :-1].astype(np.int32).ravel(), entries.astype(np.uint8).ravel())


def test_curves_are_estimated_for_a_limited_number_of_products(level):
    """Test the last of many products, by the bytes that its tables take."""
    channels, size = 16, 4
    bits, weights, values = pack_weights(np.full((channels, 1, 1, 1), 3))
    inner = p.Tensor(size, size, channels, 0, 1, 256)

    def measure(products):
        trivial = p.Piecewise(np.zeros(0, np.int32), np.zeros(channels, np.uint8))
        window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
        epilogues = [*[trivial] * (products - 1), make_swish_pieces(channels)]
        program = p.Program(
            (p.Port(np.int32([size, size, 1]), size, size, 1, 0),),
            (p.Port(np.int32([size, size, channels]), size, size, channels, 0),),
            (p.Tensor(size, size, 1, 0, 1, 256), *[inner] * products),
            (
                p.Quantize(0, 0, np.int32([1]), np.arange(255, dtype=np.float32), 0),
                *(
                    p.Product(0, i + 1, window, 1, bits, weights, values, epilogue)
                    for i, epilogue in enumerate(epilogues)
                ),
                p.Dequantize(products, 0, np.arange(256, dtype=np.float32)),
            ),
        )
        return Network(program).describe()["stages"][products]["bytes"]

    has_curves = level.startswith("avx512") or level == "amx"
    assert measure(1) == measure(2)
    assert (measure(1) != measure(1100)) == has_curves


def test_encode_writes_least_version():
    port, tensor = p.Port(np.int32([1]), 1, 1, 1, 0), p.Tensor(1, 1, 1, 0, 1, 2)
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    one, none = np.ones(1, np.int32), np.zeros(0, np.int32)
    for epilogue, version in (
        (p.Table(one, np.zeros(9, np.uint8)), 2),
        (p.Piecewise(none, np.zeros(1, np.uint8)), 3),
    ):
        product = p.Product(0, 1, window, 1, 1, np.ones(1, np.uint8), one, epilogue)
        assert encode(p.Program((port,), (port,), (tensor,), (product,))).words[0] == version
