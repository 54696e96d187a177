# SPDX-License-Identifier: Apache-2.0
"""Zero-points: compile gives the same layers before and after conversion to QONNX."""

import numpy as np
import pytest
from text_models import parse

import anybit
from anybit.onnx.analysis.analysis import analyze
from anybit.onnx.preparation import prepare_for_analysis

RANGES = {np.uint8: (0, 255), np.int8: (-128, 127)}


class Network:
    """A chain of quantized layers whose zero-points are anywhere."""

    def __init__(self, seed: int, kind: str) -> None:
        self._random = np.random.default_rng(seed)
        self._kind = kind
        self._lines = ""
        self._constants: dict[str, np.ndarray] = {}
        channels, x = 6, self._quantized("x")
        for index in range(4):
            width = int(self._random.integers(4, 9))
            x = self._layer(x, index, channels, width)
            channels = width
        space = [5, 5] if kind == "Conv" else []
        ports = (f"float{['n', size, *space]} {name}" for name, size in (("x", 6), (x, channels)))
        head = "g ({}) => ({})".format(*ports).replace("'", "")
        self.proto = parse(f"{head} {{ {self._lines} }}", self._constants)
        self.x = np.float32(self._random.normal(0, 3, (9, 6, *space)))

    def _layer(self, x: str, index: int, channels: int, width: int) -> str:
        conv = self._kind == "Conv"
        shape = (width, channels, 3, 3) if conv else (channels, width)
        weight = self._weight(shape, axis=0 if conv else 1)
        name, pads = f"y{index}", "<pads = [1, 1, 1, 1]>" if conv else ""
        self._lines += f"{name} = {self._kind}{pads}({x}, {weight})\n"
        if self._random.random() < 0.6:
            self._lines += f"r{index} = Relu({name})\n"
            name = f"r{index}"
        return self._quantized(name)

    def _quantized(self, x: str) -> str:
        dtype = (np.uint8, np.int8)[self._random.integers(2)]
        low, high = RANGES[dtype]
        parameters = self._parameters(x, np.asarray(self._random.integers(low, high + 1)), dtype)
        self._lines += f"{x}_q = QuantizeLinear({x}, {parameters})\n"
        self._lines += f"{x}_d = DequantizeLinear({x}_q, {parameters})\n"
        return f"{x}_d"

    def _weight(self, shape: tuple[int, ...], axis: int) -> str:
        name = f"w{len(self._constants)}"
        dtype = (np.uint8, np.int8)[self._random.integers(2)]
        middle = 128 if dtype is np.uint8 else 0
        size = (shape[axis],) if self._random.random() < 0.5 else ()
        zeropt = self._random.integers(-20, 20, size) + middle
        parameters = self._parameters(name, zeropt, dtype)
        codes = self._random.integers(-100, 100, shape) + middle
        self._constants[name] = codes.astype(dtype)
        self._lines += f"{name}_d = DequantizeLinear<axis = {axis}>({name}, {parameters})\n"
        return f"{name}_d"

    def _parameters(self, name: str, zeropt: np.ndarray, dtype: type) -> str:
        scale = np.float32(self._random.uniform(0.01, 0.05, zeropt.shape))
        if self._random.random() < 0.5:
            scale = np.float32(2.0 ** self._random.integers(-7, -4, zeropt.shape))
        self._constants[f"{name}_s"] = np.asarray(scale)
        self._constants[f"{name}_z"] = np.asarray(zeropt, dtype)
        return f"{name}_s, {name}_z"


@pytest.mark.sample(8)
@pytest.mark.parametrize("kind", ["MatMul", "Conv"])
@pytest.mark.parametrize("seed", range(8))
def test_compile_covers_same_layers_after_conversion_to_qonnx(kind: str, seed: int) -> None:
    network = Network(seed, kind)
    converted = anybit.convert(network.proto, to="qonnx")
    assert converted.exact
    assert not any(step.action == "kept" for step in converted.steps)
    (expected,) = anybit.load(network.proto).run(network.x).values()
    (values,) = anybit.load(converted).run(network.x).values()
    np.testing.assert_array_equal(values, expected)
    before, after = anybit.compile(network.proto), anybit.compile(converted)
    taken = [
        [layer.name for layer in compiled.report.layers if layer.guarantee is not None]
        for compiled in (before, after)
    ]
    assert taken == [["y0", "y1", "y2", "y3"]] * 2
    for compiled in (before, after):
        (result,) = compiled.run(network.x).values()
        assert np.mean(result != expected) < 0.01, "other than at risk of rounding"


@pytest.mark.parametrize(
    ("low", "high", "allowed"),
    [
        (-64.5, 63.0, range(-129, 127)),
        (-0.5, 3.0, range(-1, 7)),
        (-np.inf, 3.0, range(-256, 7)),
        (-0.25, 3.0, None),
    ],
)
def test_tensor_grids_are_narrowed_by_clip(low: float, high: float, allowed: range | None) -> None:
    """Check bounds on and off the grid; the codes before the second Clip are 0 .. 100."""
    floats = {"s": 0.5, "z": 0, "b": 9, "none": 0, "top": 50, "low": low, "high": high}
    graph = """g (float[n, 3] x) => (float[n, 3] y) {
        c = Clip(x, none, top)
        q = IntQuant(c, s, z, b)
        y = Clip(q, low, high)
    }"""
    model = prepare_for_analysis(parse(graph, floats, opset=13, version=1))
    codes = analyze(model).values[model.graph.outputs[0]].codes
    if allowed is None:
        assert codes is None or codes.allowed in (None, range(-256, 256))
    else:
        assert codes is not None
        assert codes.allowed == allowed
