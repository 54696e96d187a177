# SPDX-License-Identifier: Apache-2.0
"""Non-monotonic functions of wide sums: replay and rounding."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from text_models import parse

import anybit
from anybit.compiler.partition.element_functions import ElementFunction, NodeChain
from anybit.compiler.partition.expressions import Accumulators, IntegerRange
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import apply_epilogue
from anybit.compiler.requantize import epilogue
from anybit.compiler.requantize.float_replay import requantize_by_replay
from anybit.compiler.requantize.requantizer import requantize
from anybit.onnx.passes import InferShapes
from anybit.onnx.preparation import prepare_for_analysis
from anybit.quant_types.grids import TensorGrid
from anybit.quant_types.layer_info import Guarantee

HARD_SWISH = "a = Add(x, three) c = Clip(a, none, six) m = Mul(x, c) d = Div(m, six)"
QUANT = "q = qonnx.custom_op.general.Quant"
LINEAR = "i = QuantizeLinear(d, s, u) q = DequantizeLinear(i, s, u)"
SCALE = float(np.float32(0.02))
SIGNED = TensorGrid(SCALE, -128, 1, 256)


def function_of(body, zero):
    model = prepare_for_analysis(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>'
            " g (float[n, 2] x) => (float[n, 2] q) <float three = {3}, float six = {6},"
            f" float none = {{0}}, float s = {{0.02}}, float z = {{{zero}}}, uint8 u = {{{zero}}},"
            f" float b = {{8}}, float[2] k = {{0.7, 1.3}}> {{ {body} }}"
        )
    )
    InferShapes()(model)
    part = NodeChain(
        model, tuple(model.graph), (model.graph.inputs[0],), model.graph.outputs[0], 2, 1
    )
    return ElementFunction().then(part, monotone=part.monotone, uniform=False)


def root(reach, scale=1e-5, slack=0.0):
    far = IntegerRange(np.array([-reach, 3 - reach]), np.array([reach, reach - 9]))
    of = Accumulators(np.float32([scale, 1.7 * scale]), far, np.full(2, slack))
    return SimpleNamespace(channels=2, weights=np.zeros((2, 1)), accumulators=of)


@pytest.mark.parametrize(
    ("body", "zero", "codes"),
    [
        (f"{HARD_SWISH} {QUANT}<signed: int = 0>(d, s, z, b)", 19, TensorGrid(SCALE, -19, 1, 256)),
        (f"{HARD_SWISH} {QUANT}<signed: int = 1>(d, s, z, b)", 0, SIGNED),
        (f"{HARD_SWISH} {LINEAR}", 19, TensorGrid(SCALE, -19, 1, 256)),
        (f"{HARD_SWISH} e = Mul(d, k) {QUANT}(e, s, z, b)", 0, SIGNED),
        (
            f"a = Add(x, three) c = Clip(a, , six) d = Mul(x, c) {LINEAR}",
            19,
            TensorGrid(SCALE, -19, 1, 256),
        ),
        (f"d = HardSwish(x) {LINEAR}", 19, TensorGrid(SCALE, -19, 1, 256)),
        (f"e = HardSigmoid<alpha: float = 0.3>(x) d = Mul(x, e) {QUANT}(d, s, z, b)", 0, SIGNED),
        # A square; and codes that others have, too.
        (f"d = Mul(x, x) {QUANT}<narrow: int = 1>(d, s, z, b)", 0, SIGNED),
    ],
)
def test_rounded_replay_equals_function_everywhere(body, zero, codes):
    function, of = function_of(body, zero), root(2**26)
    result = requantize_by_replay(function, of, codes)
    assert isinstance(result.epilogue, p.Rounded)
    points = np.random.default_rng(0).integers(3 - 2**26, 2**26 - 9, (20_000, 2))
    points = np.concatenate([points, points // 256, [[-(2**26), 3 - 2**26]]])
    expected = codes.index(function(of.accumulators.values(points)))
    assert len(np.unique(expected)) > 50
    np.testing.assert_array_equal(apply_epilogue(result.epilogue, points, codes.levels), expected)


@pytest.mark.parametrize("mode", ["FLOOR", "CEIL", "DOWN", "HALF_UP"])
def test_rounded_replay_refuses_other_roundings(mode):
    body = f'{HARD_SWISH} {QUANT}<rounding_mode: string = "{mode}">(d, s, z, b)'
    assert (
        requantize_by_replay(function_of(body, 0), root(2**26), TensorGrid(SCALE, -128, 1, 256))
        is None
    )


def test_rounded_replay_lists_risks_near_zero(monkeypatch):
    monkeypatch.setattr(epilogue, "_MOST_NEAR", 2**12)
    codes = TensorGrid(SCALE, -19, 1, 256)
    function = function_of(f"{HARD_SWISH} {QUANT}<signed: int = 0>(d, s, z, b)", 19)
    result = requantize_by_replay(function, root(2**26, scale=1e-3, slack=1e-5), codes)
    assert result.more_risks
    assert 0 < len(result.risks) < 100
    assert max(abs(accumulator) for _, accumulator in result.risks) <= 2**10


def test_add_all_risks_finds_dip_between_accumulators():
    """Use a function with the same index at all accumulators and at the bounds of their sums."""
    body = f"a = Add(x, k) d = Mul(a, a) e = Min(d, s) {QUANT}(e, s, z, b)"
    function, of = function_of(body, 0), root(20, scale=1, slack=0.45)
    result = requantize(function, of, TensorGrid(SCALE, -128, 1, 256))
    assert (result.steps, result.risks, result.more_risks) == (0, ((0, -1), (1, -1)), False)


@pytest.mark.parametrize(("slack", "more"), [(0.0, False), (1e-9, True)])
def test_add_all_risks_does_not_certify_unproven_functions(slack, more):
    function = function_of(f"g = Sigmoid(x) d = Mul(x, g) {QUANT}(d, s, z, b)", 0)
    result = requantize(
        function, root(20, scale=0.37, slack=slack), TensorGrid(SCALE, -128, 1, 256)
    )
    assert isinstance(result.epilogue, p.Table)
    assert (result.risks, result.more_risks) == ((), more)


@pytest.mark.parametrize("slack", [1e-5, 1e-3])
def test_add_all_risks_lists_all_accumulators(slack):
    codes = TensorGrid(SCALE, -128, 1, 256)
    function = function_of(f"{HARD_SWISH} {QUANT}(d, s, z, b)", 0)
    of = root(3000, scale=1e-3, slack=slack)
    result = requantize(function, of, codes)
    assert not result.more_risks
    points = np.arange(3 - 3000, 3000 - 9)[:, None].repeat(2, axis=1)
    off = np.random.default_rng(0).uniform(-slack, slack, (20, *points.shape))
    indices = codes.index(
        function((of.accumulators.values(points) + off).astype(np.float32).reshape(-1, 2))
    )
    moved = (
        indices.reshape(off.shape) != codes.index(function(of.accumulators.values(points)))
    ).any(axis=0)
    rows, channels = np.nonzero(moved)
    seen = set(zip(channels.tolist(), points[rows, channels].tolist(), strict=True))
    assert seen <= set(result.risks)
    assert 0 < len(seen) <= len(result.risks) < 12 * len(seen)


STEPS = "a = Add(h, three) e = Clip(a, none, six) m = Mul(h, e) d = Div(m, six)"


@pytest.mark.parametrize(("largest", "epilogue"), [(7, "Table"), (127, "Rounded")])
def test_requantize_prefers_replay_to_large_table(largest, epilogue):
    """Give the same codes as the table, certified."""
    random = np.random.default_rng(0)
    weights = random.integers(-largest, largest + 1, (4, 8)).astype(np.float32)
    scales = {"s": 0.0078125, "t": 0.25, "u": 0.0625}
    proto = parse(
        f"""g (float[n, 4] x) => (float[n, 8] y) {{
            xq = Quant(x, s, none, b)
            wq = Quant(w, t, none, b)
            h = MatMul(xq, wq)
            {STEPS}
            y = Quant(d, u, none, b)
        }}""",
        {"three": 3, "six": 6, "none": 0, "b": 8, "w": weights / 4, **scales},
        version=1,
    )
    compiled = anybit.compile(proto)
    (layer,) = compiled.report.layers
    assert (layer.epilogue, layer.guarantee) == (epilogue, Guarantee.EXACT)
    x = random.normal(0, 0.3, (500, 4)).astype(np.float32)
    expected = anybit.load(proto).run(x)["y"]
    assert len(np.unique(expected)) > 5
    np.testing.assert_array_equal(compiled.run(x)["y"], expected)


@pytest.mark.parametrize("steps", [STEPS, "d = HardSwish(h)"])
def test_rounded_replay_keeps_network_in_one_region(steps):
    random = np.random.default_rng(0)
    constants = {"three": 3, "six": 6, "none": 0, "s": 0.02, "b": 8, "t": 0.013}
    for name, shape in (("w", (40, 64, 3, 3)), ("v", (3, 40, 1, 1)), ("c", (40,))):
        constants[name] = (random.integers(-127, 128, shape) * 0.013).astype(np.float32)
    proto = parse(
        f"""g (float[n, 64, 6, 6] x) => (float[n, 3, 6, 6] y) {{
            wq = Quant(w, t, none, b)
            vq = Quant(v, t, none, b)
            xq = Quant(x, s, none, b)
            h = Conv<pads = [1, 1, 1, 1]>(xq, wq, c)
            {steps}
            dq = Quant(d, s, none, b)
            y = Conv(dq, vq)
        }}""",
        constants,
        version=1,
    )
    compiled = anybit.compile(proto)
    first = compiled.report.layers[0]
    assert (len(compiled.report.programs), first.epilogue) == (1, "Rounded")
    assert first.guarantee is Guarantee.BOUNDED
    x = random.normal(0, 2, (3, 64, 6, 6)).astype(np.float32)
    expected = anybit.load(proto).run(x)["y"]
    off = np.abs(compiled.run(x)["y"] - expected)
    assert np.mean(off > 1e-4) < 0.02
    assert off.max() < 0.2
