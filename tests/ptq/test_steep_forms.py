# SPDX-License-Identifier: Apache-2.0
"""Integer-only quantization of written-out normalizations, and of other functions steep near 0."""

import re
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from pass_checks import random
from small_models import kinds, model, node

import anybit

_WIDTH = 8
Body = Callable[["_Graph", str], str]


class _Graph:
    """Builder of the nodes between two MatMuls; `op` returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, kind: str, *inputs: str | float | np.ndarray, **options: object) -> str:
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        y = f"v{len(self.nodes)}"
        self.nodes.append(node(kind, " ".join(names), y, domain="", name=f"{kind}_{y}", **options))
        return y

    def constant(self, value: float | np.ndarray) -> str:
        array = value if isinstance(value, np.ndarray) else np.float32(value)
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def mean(self, x: str) -> str:
        return self.op("ReduceMean", x, axes=[-1], keepdims=1)

    def total(self, x: str) -> str:
        return self.op("ReduceSum", x, np.array([-1]), keepdims=1)


def make_network(body: Body, *, residual: bool = False, seed: int = 0) -> onnx.ModelProto:
    g = _Graph()
    h = g.op("MatMul", "x", random(_WIDTH, _WIDTH, seed=seed) / 2)
    if residual:
        more = g.op("MatMul", g.op("Relu", h), random(_WIDTH, _WIDTH, seed=seed + 1) / 2)
        h = g.op("Add", h, more)
    last = g.constant(random(_WIDTH, 5, seed=seed + 2) / 2)
    g.nodes.append(node("MatMul", f"{body(g, h)} {last}", domain="", name="last"))
    return model(
        g.nodes, g.constants, inputs={"x": ["rows", _WIDTH]}, opsets={"": 16}, ir_version=8
    )


def make_rows(seed: int = 0) -> np.ndarray:
    sizes = np.exp(np.random.default_rng(seed).standard_normal((160, 1)) * 1.5)
    return (random(160, _WIDTH, seed=seed + 7) * sizes).astype(np.float32)


def layer_norm(
    form: str, epsilon: float = 1e-5, square: str = "Mul"
) -> Callable[[_Graph, str], str]:
    def body(g: _Graph, h: str) -> str:
        mean = g.mean(h)
        centered = g.op("Sub", h, mean)
        squares = g.op("Mul", centered, centered)
        if square == "Pow":
            squares = g.op("Pow", centered, 2.0)
        variance = g.mean(squares)
        if epsilon:
            variance = g.op("Add", variance, epsilon)
        match form:
            case "Div":
                return g.op("Div", centered, g.op("Sqrt", variance))
            case "Div by Pow":
                return g.op("Div", centered, g.op("Pow", variance, 0.5))
            case "Reciprocal":
                return g.op("Mul", centered, g.op("Reciprocal", g.op("Sqrt", variance)))
            case "1 / Sqrt":
                return g.op("Mul", centered, g.op("Div", 1.0, g.op("Sqrt", variance)))
            case "Pow":
                return g.op("Mul", centered, g.op("Pow", variance, -0.5))
        inverse = g.op("Reciprocal", g.op("Sqrt", variance))
        scale = g.op("Mul", inverse, np.linspace(0.5, 2, _WIDTH, dtype=np.float32))
        offset = g.op("Mul", mean, scale)
        shift = g.op("Sub", np.linspace(-1, 1, _WIDTH, dtype=np.float32), offset)
        return g.op("Add", g.op("Mul", h, scale), shift)

    return body


def rms_norm(g: _Graph, h: str) -> str:
    root = g.op("Sqrt", g.op("Add", g.mean(g.op("Pow", h, 2.0)), 1e-6))
    return g.op("Mul", g.op("Div", h, root), np.linspace(0.5, 2, _WIDTH, dtype=np.float32))


def variance_by_squares(g: _Graph, h: str) -> str:
    mean = g.mean(h)
    variance = g.op("Sub", g.mean(g.op("Mul", h, h)), g.op("Mul", mean, mean))
    root = g.op("Sqrt", g.op("Add", variance, 1e-2))
    return g.op("Div", g.op("Sub", h, mean), root)


def group_norm(g: _Graph, h: str) -> str:
    groups = g.op("Reshape", h, np.array([0, 2, 4]))
    normal = layer_norm("Div")(g, groups)
    flat = g.op("Reshape", normal, np.array([0, _WIDTH]))
    return g.op("Add", g.op("Mul", flat, np.linspace(0.5, 2, _WIDTH, dtype=np.float32)), 0.1)


def softmax(g: _Graph, h: str) -> str:
    shifted = g.op("Sub", h, g.op("ReduceMax", h, axes=[-1], keepdims=1))
    exponentials = g.op("Exp", shifted)
    return g.op("Div", exponentials, g.total(exponentials))


def l2_norm(g: _Graph, h: str) -> str:
    return g.op("Div", h, g.op("Clip", g.op("ReduceL2", h, axes=[-1], keepdims=1), 1e-12))


def log_mel(g: _Graph, h: str) -> str:
    bands = g.op("MatMul", g.op("Mul", h, h), np.abs(random(_WIDTH, _WIDTH, seed=9)))
    return g.op("Log", g.op("Add", bands, 1e-6))


def log_power(g: _Graph, h: str) -> str:
    return g.op("Log", g.op("Add", g.op("Mul", h, h), 1e-6))


def log_sum(g: _Graph, h: str) -> str:
    exponentials = g.op("Add", g.op("Exp", g.op("Min", h, 30.0)), 1.0)
    return g.op("Sub", h, g.op("ReduceLogSum", exponentials, axes=[-1], keepdims=1))


def root(g: _Graph, h: str) -> str:
    return g.op("Pow", g.op("Add", g.op("Mul", h, h), 1e-4), 0.3)


def deviation(g: _Graph, h: str) -> str:
    centered = g.op("Sub", h, g.mean(h))
    return g.op("Add", h, g.op("Sqrt", g.mean(g.op("Mul", centered, centered))))


def divided_gate(g: _Graph, h: str) -> str:
    gate = g.op("MatMul", h, random(_WIDTH, _WIDTH, seed=3))
    return g.op("Div", g.op("Relu", h), g.op("Add", g.op("Exp", g.op("Neg", gate)), 1.0))


STEEP: dict[str, Body] = {
    "LayerNormalization": layer_norm("Div"),
    "LayerNormalization with Pow": layer_norm("Div", square="Pow"),
    "LayerNormalization divided by a power": layer_norm("Div by Pow"),
    "LayerNormalization times Reciprocal": layer_norm("Reciprocal"),
    "LayerNormalization times 1 / Sqrt": layer_norm("1 / Sqrt"),
    "LayerNormalization times a power": layer_norm("Pow"),
    "LayerNormalization of TensorFlow": layer_norm("scale and shift"),
    "RMSNormalization": rms_norm,
    "variance of squares": variance_by_squares,
    "GroupNormalization": group_norm,
    "Softmax": softmax,
    "L2": l2_norm,
    "logarithm of bands": log_mel,
    "logarithm of a power": log_power,
    "logarithm of a sum": log_sum,
    "root": root,
    "deviation": deviation,
    "gate": divided_gate,
}


def sigmoid(g: _Graph, h: str) -> str:
    return g.op("Reciprocal", g.op("Add", g.op("Exp", g.op("Neg", h)), 1.0))


def swish(g: _Graph, h: str) -> str:
    return g.op("Div", h, g.op("Add", g.op("Exp", g.op("Neg", h)), 1.0))


def softsign(g: _Graph, h: str) -> str:
    return g.op("Div", h, g.op("Add", g.op("Abs", h), 1.0))


def softplus(g: _Graph, h: str) -> str:
    return g.op("Log", g.op("Add", g.op("Exp", g.op("Min", h, 40.0)), 1.0))


def gelu(g: _Graph, h: str) -> str:
    return g.op("Mul", h, g.op("Add", g.op("Erf", g.op("Div", h, 1.4142135)), 1.0))


AWAY: dict[str, Body] = {body.__name__: body for body in (sigmoid, swish, softsign, softplus, gelu)}


@pytest.mark.usefixtures("unfused_layer_norm")
@pytest.mark.sample(18)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", STEEP)
def test_integer_only_keeps_steep_functions_finite(name: str, residual: bool) -> None:
    """Check data of other magnitudes, compiled results and the remark, too."""
    proto = make_network(STEEP[name], residual=residual, seed=len(name))
    result = anybit.quantize(
        proto, make_rows(), integer_only=True, scales="power-of-two", effort="fast"
    )
    assert result.skipped
    (remark,) = [text for text in result.remarks if "too coarse" in text]
    steep = [name for name, reason in result.skipped.items() if reason.startswith("it is steep")]
    assert all(name in remark for name in steep)
    x = make_rows(seed=50)
    y = anybit.load(result).run(x)["y"]
    assert np.isfinite(anybit.load(proto).run(x)["y"]).all()
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(anybit.compile(result).run(x)["y"], y)


@pytest.mark.usefixtures("unfused_layer_norm")
@pytest.mark.sample(4)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", STEEP)
def test_integer_only_loses_little_sqnr_with_steep_functions(name: str, residual: bool) -> None:
    proto, x = make_network(STEEP[name], residual=residual, seed=1), random(160, _WIDTH, seed=2)
    verdicts = [
        anybit.quantize(proto, x, integer_only=integer_only, effort="fast").verdict
        for integer_only in (False, True)
    ]
    plain, integer = (verdict.sqnr for verdict in verdicts if verdict is not None)
    assert plain is not None
    assert integer is not None
    assert integer > plain - 4


@pytest.mark.parametrize("name", AWAY)
def test_integer_only_quantizes_functions_away_from_zero(name: str) -> None:
    proto = make_network(AWAY[name], seed=5)
    result = anybit.quantize(
        proto, make_rows(), integer_only=True, scales="power-of-two", effort="fast"
    )
    assert not result.skipped
    assert not result.remarks
    compiled = anybit.compile(result)
    assert kinds(compiled.model) == ["IntegerNetwork"]
    x = make_rows(seed=51)
    y = anybit.load(result).run(x)["y"]
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(compiled.run(x)["y"], y)


@pytest.mark.sample(10)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", [name for name in STEEP if name.startswith("Layer")])
def test_quantize_fuses_layer_normalization(name: str, residual: bool) -> None:
    proto = make_network(STEEP[name], residual=residual, seed=len(name))
    result = anybit.quantize(
        proto, make_rows(), integer_only=True, scales="power-of-two", effort="fast"
    )
    assert kinds(result.model).count("LayerNormalization") == 1
    assert not [text for text in result.remarks if "too coarse" in text]
    compiled = anybit.compile(result)
    assert len(compiled.report.programs) == 1
    x = make_rows(seed=50)
    y, exact = anybit.load(result).run(x)["y"], anybit.load(proto).run(x)["y"]
    assert np.isfinite(y).all()
    assert np.linalg.norm(y - exact) < np.linalg.norm(exact) / (2 if residual else 3)
    # The function of floats may round otherwise, and codes may then differ.
    assert np.mean(np.abs(compiled.run(x)["y"] - y) > 1e-5) < 0.01


@pytest.mark.usefixtures("unfused_layer_norm")
def test_integer_only_explains_skipped_layer_normalization() -> None:
    result = anybit.quantize(
        make_network(layer_norm("Div")), make_rows(), integer_only=True, effort="fast"
    )
    reasons = {name.split("_")[0]: reason for name, reason in result.skipped.items()}
    assert "divides by values near 0" in reasons["Div"]
    assert "steep near 0" in reasons["Sqrt"]
    assert all(
        "it leads to" in reasons[operator] for operator in ("Sub", "Mul", "Add", "ReduceMean")
    )
    for inner in result.model.graph:
        if inner.op_type in ("Div", "Sqrt", "Sub", "ReduceMean"):
            producers = [value.producer() for value in inner.inputs]
            assert all(producer is None or producer.op_type != "IntQuant" for producer in producers)


@pytest.mark.parametrize("integer_only", [False, True])
def test_quantize_suggests_to_keep_layers_that_make_a_denominator_zero(integer_only: bool) -> None:
    """Without an epsilon, the denominator is 0 where quantized layers return 0."""
    proto = make_network(layer_norm("Div", epsilon=0))
    x = make_rows()
    result = anybit.quantize(proto, x, integer_only=integer_only, effort="fast")
    (remark,) = [text for text in result.remarks if "infinite or NaN where" in text]
    names = re.findall(r"--keep '([^']*)'", remark)
    assert names == ["MatMul_v0"]
    better = anybit.quantize(proto, x, keep=names, integer_only=integer_only, effort="fast")
    assert np.isfinite(anybit.load(better).run(x)["y"]).all()
    assert not any("infinite or NaN where" in text for text in better.remarks)
