# SPDX-License-Identifier: Apache-2.0
"""Functions that bend behind wide sums: replayed, and rounded as their quantizers round."""

import re
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import anybit
from anybit.lowbit import program as p
from anybit.lowbit import tails
from anybit.lowbit.functions import Function, Nodes
from anybit.lowbit.parts import Codes
from anybit.lowbit.planning import _known
from anybit.lowbit.reference import _after
from anybit.lowbit.rounded import rounded_of
from anybit.lowbit.staircases import Range
from anybit.lowbit.tails import Sum
from anybit.onnx.passes import InferShapes
from anybit.onnx.preparation import followable
from anybit.quant_types.layer_info import Guarantee

HARD_SWISH = "a = Add(x, three) c = Clip(a, none, six) m = Mul(x, c) d = Div(m, six)"
QUANT = "q = qonnx.custom_op.general.Quant"
LINEAR = "i = QuantizeLinear(d, s, u) q = DequantizeLinear(i, s, u)"
SCALE = float(np.float32(0.02))
SIGNED = Codes(SCALE, -128, 1, 256)


def function_of(body, zero):
    model = followable(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>'
            " g (float[n, 2] x) => (float[n, 2] q) <float three = {3}, float six = {6},"
            f" float none = {{0}}, float s = {{0.02}}, float z = {{{zero}}}, uint8 u = {{{zero}}},"
            f" float b = {{8}}, float[2] k = {{0.7, 1.3}}> {{ {body} }}"
        )
    )
    InferShapes()(model)
    part = Nodes(model, tuple(model.graph), (model.graph.inputs[0],), model.graph.outputs[0], 2, 1)
    return Function().then(part, monotone=part.monotone, uniform=False)


def root(reach, scale=1e-5, slack=0.0):
    far = Range(np.array([-reach, 3 - reach]), np.array([reach, reach - 9]))
    of = Sum(np.float32([scale, 1.7 * scale]), far, np.full(2, slack))
    return SimpleNamespace(weights=np.zeros((2, 1)), sum=of)


@pytest.mark.parametrize(
    ("body", "zero", "codes"),
    [
        (f"{HARD_SWISH} {QUANT}<signed: int = 0>(d, s, z, b)", 19, Codes(SCALE, -19, 1, 256)),
        (f"{HARD_SWISH} {QUANT}<signed: int = 1>(d, s, z, b)", 0, SIGNED),
        (f"{HARD_SWISH} {LINEAR}", 19, Codes(SCALE, -19, 1, 256)),
        (f"{HARD_SWISH} e = Mul(d, k) {QUANT}(e, s, z, b)", 0, SIGNED),
        (
            f"a = Add(x, three) c = Clip(a, , six) d = Mul(x, c) {LINEAR}",
            19,
            Codes(SCALE, -19, 1, 256),
        ),
        (f"d = HardSwish(x) {LINEAR}", 19, Codes(SCALE, -19, 1, 256)),
        (f"e = HardSigmoid<alpha: float = 0.3>(x) d = Mul(x, e) {QUANT}(d, s, z, b)", 0, SIGNED),
        # A square; and codes that others have, too.
        (f"d = Mul(x, x) {QUANT}<narrow: int = 1>(d, s, z, b)", 0, SIGNED),
    ],
)
def test_it_is_the_function_at_every_accumulator(body, zero, codes):
    function, of = function_of(body, zero), root(2**26)
    found = rounded_of(function, of, codes)
    assert isinstance(found.tail, p.Rounded)
    points = np.random.default_rng(0).integers(3 - 2**26, 2**26 - 9, (20_000, 2))
    points = np.concatenate([points, points // 256, [[-(2**26), 3 - 2**26]]])
    wanted = codes.index(function(of.sum.values(points)))
    assert len(np.unique(wanted)) > 50
    np.testing.assert_array_equal(_after(found.tail, points, codes.levels), wanted)


@pytest.mark.parametrize("mode", ["FLOOR", "CEIL", "DOWN", "HALF_UP"])
def test_quantizers_that_round_otherwise_are_not_taken_for_others(mode):
    body = f'{HARD_SWISH} {QUANT}<rounding_mode: string = "{mode}">(d, s, z, b)'
    assert rounded_of(function_of(body, 0), root(2**26), Codes(SCALE, -128, 1, 256)) is None


def test_risks_are_those_nearest_to_zero(monkeypatch):
    monkeypatch.setattr(tails, "_MOST_NEAR", 2**12)
    codes = Codes(SCALE, -19, 1, 256)
    function = function_of(f"{HARD_SWISH} {QUANT}<signed: int = 0>(d, s, z, b)", 19)
    found = rounded_of(function, root(2**26, scale=1e-3, slack=1e-5), codes)
    assert found.more_risks
    assert 0 < len(found.risks) < 100
    assert max(abs(accumulator) for _, accumulator in found.risks) <= 2**10


def test_a_dip_between_two_accumulators_is_a_risk():
    """The index is the same at every accumulator, and at both ends of what rounding makes of it."""
    body = f"a = Add(x, k) d = Mul(a, a) e = Min(d, s) {QUANT}(e, s, z, b)"
    function, of = function_of(body, 0), root(20, scale=1, slack=0.45)
    found = _known(function, of, Codes(SCALE, -128, 1, 256))
    assert (found.steps, found.risks, found.more_risks) == (0, ((0, -1), (1, -1)), False)


@pytest.mark.parametrize(("slack", "more"), [(0.0, False), (1e-9, True)])
def test_functions_that_bend_and_are_not_replayed_are_never_certified(slack, more):
    function = function_of(f"g = Sigmoid(x) d = Mul(x, g) {QUANT}(d, s, z, b)", 0)
    found = _known(function, root(20, scale=0.37, slack=slack), Codes(SCALE, -128, 1, 256))
    assert isinstance(found.tail, p.Table)
    assert (found.risks, found.more_risks) == ((), more)


@pytest.mark.parametrize("slack", [1e-5, 1e-3])
def test_all_that_rounding_may_move_is_listed(slack):
    codes = Codes(SCALE, -128, 1, 256)
    function = function_of(f"{HARD_SWISH} {QUANT}(d, s, z, b)", 0)
    of = root(3000, scale=1e-3, slack=slack)
    found = _known(function, of, codes)
    assert not found.more_risks
    points = np.arange(3 - 3000, 3000 - 9)[:, None].repeat(2, axis=1)
    off = np.random.default_rng(0).uniform(-slack, slack, (20, *points.shape))
    indices = codes.index(function((of.sum.values(points) + off).astype(np.float32).reshape(-1, 2)))
    moved = (indices.reshape(off.shape) != codes.index(function(of.sum.values(points)))).any(axis=0)
    rows, channels = np.nonzero(moved)
    seen = set(zip(channels.tolist(), points[rows, channels].tolist(), strict=True))
    assert seen <= set(found.risks)
    assert 0 < len(seen) <= len(found.risks) < 12 * len(seen)


MODEL = """
<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
g (float[n, 64, 6, 6] x) => (float[n, 3, 6, 6] y)
<float three = {3}, float six = {6}, float none = {0}, float s = {0.02}, float b = {8},
 float t = {0.013}>
{
    xq = qonnx.custom_op.general.Quant (x, s, none, b)
    h = Conv <pads: ints = [1, 1, 1, 1]> (xq, w, c)
    a = Add(h, three)
    e = Clip(a, none, six)
    m = Mul(h, e)
    d = Div(m, six)
    dq = qonnx.custom_op.general.Quant (d, s, none, b)
    y = Conv (dq, v)
}
"""


@pytest.mark.parametrize(("largest", "tail"), [(7, "Table"), (127, "Rounded")])
def test_arithmetic_is_preferred_to_a_table_out_of_the_caches(largest, tail):
    """With the same codes: this one is certain."""
    random = np.random.default_rng(0)
    weights = random.integers(-largest, largest + 1, (4, 8)).astype(np.float32)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>'
        " g (float[n, 4] x) => (float[n, 8] y) <float three = {3}, float six = {6},"
        " float none = {0}, float one = {1}, float s = {0.0078125}, float b = {8},"
        " float t = {0.25}, float u = {0.0625}>"
        "{ xq = qonnx.custom_op.general.Quant (x, s, none, b)"
        "  wq = qonnx.custom_op.general.Quant (w, t, none, b) h = MatMul(xq, wq)"
        "  a = Add(h, three) e = Clip(a, none, six) m = Mul(h, e) d = Div(m, six)"
        "  y = qonnx.custom_op.general.Quant (d, u, none, b) }"
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights / 4, "w"))
    compiled = anybit.compile(proto)
    (layer,) = compiled.report.layers
    assert (layer.tail, layer.guarantee) == (tail, Guarantee.EXACT)
    x = random.normal(0, 0.3, (500, 4)).astype(np.float32)
    wanted = anybit.load(proto).run(x)["y"]
    assert len(np.unique(wanted)) > 5
    np.testing.assert_array_equal(compiled.run(x)["y"], wanted)


AS_ONE_NODE = re.sub(r" +a = Add.*d = Div", "    d = HardSwish(h)", MODEL, flags=re.DOTALL)


@pytest.mark.parametrize("text", [MODEL, AS_ONE_NODE.replace("(h)(m, six)", "(h)")])
def test_a_network_stays_one_region(text):
    model = ir.from_onnx_text(text.replace("\n", " "))
    random = np.random.default_rng(0)
    for name, shape in (("w", (40, 64, 3, 3)), ("v", (3, 40, 1, 1)), ("c", (40,))):
        array = (random.integers(-127, 128, shape) * 0.013).astype(np.float32)
        value = next(v for n in model.graph for v in n.inputs if v.name == name)
        value.const_value = ir.tensor(array, name=name)
        model.graph.initializers[name] = value
    weights = {"w", "v"}
    proto = ir.to_proto(model)
    for node in list(proto.graph.node):
        for at, name in enumerate(node.input):
            if name in weights:
                node.input[at] = f"{name}q"
    for name in weights:
        node = onnx.helper.make_node(
            "Quant", [name, "t", "none", "b"], [f"{name}q"], domain="qonnx.custom_op.general"
        )
        proto.graph.node.insert(0, node)
    compiled = anybit.compile(proto)
    first = compiled.report.layers[0]
    assert (len(compiled.report.programs), first.tail) == (1, "Rounded")
    assert first.guarantee is Guarantee.BOUNDED
    x = random.normal(0, 2, (3, 64, 6, 6)).astype(np.float32)
    wanted = anybit.load(proto).run(x)["y"]
    off = np.abs(compiled.run(x)["y"] - wanted)
    assert np.mean(off > 1e-4) < 0.02
    assert off.max() < 0.2
