# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear with zero-points compiles as well after a conversion to QONNX as before."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import anybit
from anybit.onnx.analysis.analysis import analyze
from anybit.onnx.preparation import followable

RANGES = {np.uint8: (0, 255), np.int8: (-128, 127)}


class Network:
    """A chain of quantized layers whose zero-points are anywhere."""

    def __init__(self, seed: int, kind: str) -> None:
        self._random = np.random.default_rng(seed)
        self._kind = kind
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        channels, x = 6, self._quantized("x")
        for index in range(4):
            width = int(self._random.integers(4, 9))
            x = self._layer(x, index, channels, width)
            channels = width
        space = [5, 5] if kind == "Conv" else []
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self._nodes,
            "g",
            [value("x", TensorProto.FLOAT, ["n", 6, *space])],
            [value(x, TensorProto.FLOAT, ["n", channels, *space])],
            self._tensors,
        )
        imports = [helper.make_opsetid("", 17)]
        self.proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
        self.x = np.float32(self._random.normal(0, 3, (9, 6, *space)))

    def _layer(self, x: str, index: int, channels: int, width: int) -> str:
        conv = self._kind == "Conv"
        shape = (width, channels, 3, 3) if conv else (channels, width)
        weight = self._weight(shape, axis=0 if conv else 1)
        name = f"y{index}"
        pads = {"pads": [1] * 4} if conv else {}
        self._nodes.append(helper.make_node(self._kind, [x, weight], [name], **pads))
        if self._random.random() < 0.6:
            self._nodes.append(helper.make_node("Relu", [name], [f"r{index}"]))
            name = f"r{index}"
        return self._quantized(name)

    def _quantized(self, x: str) -> str:
        dtype = (np.uint8, np.int8)[self._random.integers(2)]
        low, high = RANGES[dtype]
        parameters = self._parameters(x, np.asarray(self._random.integers(low, high + 1)), dtype)
        self._nodes.append(helper.make_node("QuantizeLinear", [x, *parameters], [f"{x}_q"]))
        pair = [f"{x}_q", *parameters]
        self._nodes.append(helper.make_node("DequantizeLinear", pair, [f"{x}_d"]))
        return f"{x}_d"

    def _weight(self, shape: tuple[int, ...], axis: int) -> str:
        name = f"w{len(self._nodes)}"
        dtype = (np.uint8, np.int8)[self._random.integers(2)]
        middle = 128 if dtype is np.uint8 else 0
        size = (shape[axis],) if self._random.random() < 0.5 else ()
        zeropt = self._random.integers(-20, 20, size) + middle
        parameters = self._parameters(name, zeropt, dtype)
        codes = self._random.integers(-100, 100, shape) + middle
        self._tensors.append(numpy_helper.from_array(codes.astype(dtype), name))
        node = helper.make_node("DequantizeLinear", [name, *parameters], [f"{name}_d"], axis=axis)
        self._nodes.append(node)
        return f"{name}_d"

    def _parameters(self, name: str, zeropt: np.ndarray, dtype: type) -> list[str]:
        scale = np.float32(self._random.uniform(0.01, 0.05, zeropt.shape))
        if self._random.random() < 0.5:
            scale = np.float32(2.0 ** self._random.integers(-7, -4, zeropt.shape))
        self._tensors.append(numpy_helper.from_array(scale, f"{name}_s"))
        self._tensors.append(numpy_helper.from_array(np.asarray(zeropt, dtype), f"{name}_z"))
        return [f"{name}_s", f"{name}_z"]


@pytest.mark.parametrize("kind", ["MatMul", "Conv"])
@pytest.mark.parametrize("seed", range(8))
def test_compile_takes_the_same_layers_after_conversion_to_qonnx(kind: str, seed: int) -> None:
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
        (found,) = compiled.run(network.x).values()
        assert np.mean(found != expected) < 0.01, "other than at risk of rounding"


@pytest.mark.parametrize(
    ("low", "high", "allowed"),
    [
        (-64.5, 63.0, range(-129, 127)),
        (-0.5, 3.0, range(-1, 7)),
        (-np.inf, 3.0, range(-256, 7)),
        (-0.25, 3.0, None),
    ],
)
def test_clip_on_the_grid_narrows_the_type_of_codes(
    low: float, high: float, allowed: range | None
) -> None:
    """Also where it cuts nothing off, since a Relu stands before it; a bound off the grid does not.

    The codes that occur are 0 .. 100.
    """
    value = helper.make_tensor_value_info
    floats = {"s": 0.5, "z": 0, "b": 9, "none": 0, "top": 50, "low": low, "high": high}
    nodes = [
        helper.make_node("Clip", ["x", "none", "top"], ["c"]),
        helper.make_node("IntQuant", ["c", "s", "z", "b"], ["q"], domain="qonnx.custom_op.general"),
        helper.make_node("Clip", ["q", "low", "high"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["n", 3])],
        [value("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(np.float32(each), name) for name, each in floats.items()],
    )
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("qonnx.custom_op.general", 1)]
    model = followable(helper.make_model(graph, opset_imports=imports, ir_version=8))
    codes = analyze(model).values[model.graph.outputs[0]].codes
    if allowed is None:
        assert codes is None or codes.allowed in (None, range(-256, 256))
    else:
        assert codes is not None
        assert codes.allowed == allowed
