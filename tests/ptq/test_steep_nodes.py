# SPDX-License-Identifier: Apache-2.0
"""Arguments near 0 of quotients, roots and logarithms stay float32 with integer_only."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import anybit
from anybit.onnx.runtime import evaluate
from anybit.ptq.graph.intervals import Intervals

WIDTH = 8
NORMALIZATIONS = {
    "layer norm": """
        mean = ReduceMean <axes = [-1]> (h)
        d = Sub(h, mean)
        dd = Mul(d, d)
        v = ReduceMean <axes = [-1]> (dd)
        ve = Add(v, eps)
        s = Sqrt(ve)
        n = Div(d, s)
    """,
    "layer norm by a power": """
        mean = ReduceMean <axes = [-1]> (h)
        d = Sub(h, mean)
        dd = Pow(d, two)
        v = ReduceMean <axes = [-1]> (dd)
        ve = Add(v, eps)
        s = Pow(ve, minus_half)
        n = Mul(d, s)
    """,
    "RMS norm by a reciprocal": """
        dd = Mul(h, h)
        v = ReduceMean <axes = [-1]> (dd)
        ve = Add(v, eps)
        s = Sqrt(ve)
        r = Reciprocal(s)
        n = Mul(h, r)
    """,
    "L2 norm": """
        dd = Mul(h, h)
        v = ReduceSum(dd, axes)
        s = Sqrt(v)
        se = Add(s, eps)
        n = Div(h, se)
    """,
    "softmax": """
        m = ReduceMax <axes = [-1]> (h)
        d = Sub(h, m)
        e = Exp(d)
        v = ReduceSum(e, axes)
        n = Div(e, v)
    """,
    "logarithm": """
        r = Relu(h)
        re = Add(r, eps)
        n = Log(re)
    """,
    "quotient of two layers": """
        g = MatMul(x, w3)
        a = Abs(g)
        ae = Add(a, eps)
        n = Div(h, ae)
    """,
}
CONSTANTS = {
    "eps": np.float32(1e-5),
    "two": np.float32(2),
    "minus_half": np.float32(-0.5),
    "axes": np.array([-1]),
}


def make_network(body: str) -> onnx.ModelProto:
    """Return a model of two layers with nodes between them."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        graph (float[n, {WIDTH}] x) => (float[n, 5] y) {{
            h = MatMul(x, w1)
            {body}
            y = MatMul(n, w2)
        }}"""
    )
    random = np.random.default_rng(0)
    shapes = {"w1": (WIDTH, WIDTH), "w2": (WIDTH, 5), "w3": (WIDTH, WIDTH)}
    weights = {name: random.standard_normal(shape) * 0.5 for name, shape in shapes.items()}
    for name, array in {**CONSTANTS, **weights}.items():
        if any(name in node.input for node in model.graph.node):
            array = array.astype(np.float32) if array.dtype == np.float64 else array
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    for index, node in enumerate(model.graph.node):
        node.name = f"{node.output[0]}_{index}"
    return model


def make_rows(count: int = 400) -> np.ndarray:
    """Return rows of very different magnitudes, the usual inputs of normalizations."""
    random = np.random.default_rng(1)
    loudness = np.exp(random.standard_normal((count, 1)) * 1.5)
    return (random.standard_normal((count, WIDTH)) * loudness).astype(np.float32)


@pytest.mark.usefixtures("unfused_layer_norm")
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_integer_only_keeps_steep_arguments_in_float32(name: str) -> None:
    proto, x = make_network(NORMALIZATIONS[name]), make_rows()
    quantized = anybit.quantize(proto, x, integer_only=True, effort="fast")
    for array in (x, x * 1e-4, x * 1e3):
        (expected,), (actual,) = (
            anybit.load(network).run(array).values() for network in (proto, quantized)
        )
        assert np.isfinite(actual[np.isfinite(expected)]).all()
    (remark,) = [text for text in quantized.remarks if "near 0" in text]
    assert "stay float32" in remark
    compiled = anybit.compile(quantized)
    assert len(compiled.report.compiled) >= 1
    assert np.isfinite(next(iter(compiled.run(x).values()))).all()


GATES = {
    "sigmoid": "m = Neg(h)\ne = Exp(m)\ns = Add(e, one)\nn = Div(one, s)",
    "swish": "m = Neg(h)\ne = Exp(m)\ns = Add(e, one)\nn = Div(h, s)",
    "hard swish": "g = HardSigmoid(h)\nn = Mul(h, g)",
}


@pytest.mark.parametrize("name", GATES)
def test_integer_only_quantizes_gates_with_denominators_away_from_zero(name: str) -> None:
    proto = make_network(GATES[name])
    if "one" in GATES[name]:
        one = numpy_helper.from_array(np.float32(1), "one")
        proto.graph.initializer.append(one)
    quantized = anybit.quantize(proto, make_rows(), integer_only=True, effort="fast")
    assert not [text for text in quantized.remarks if "near 0" in text]
    assert not quantized.skipped


@pytest.mark.parametrize("name", [*NORMALIZATIONS, *(gate for gate in GATES if gate != "sigmoid")])
def test_intervals_hold_for_all_values_of_a_run(name: str) -> None:
    body = {**NORMALIZATIONS, **GATES}[name]
    proto = make_network(body)
    if "one" in body:
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
    model = ir.from_proto(proto)
    intervals = Intervals(model.graph)
    bounds = {str(value.name): intervals(value) for node in model.graph for value in node.outputs}
    fragment = model.clone()
    fragment.graph.outputs[:] = [value for node in fragment.graph for value in node.outputs]
    for value, array in evaluate(fragment, {"x": make_rows()}).items():
        low, high = bounds[value]
        assert np.all(array >= low), value
        assert np.all(array <= high), value
    assert any(bound != (-np.inf, np.inf) for bound in bounds.values())
