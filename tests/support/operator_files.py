# SPDX-License-Identifier: Apache-2.0
"""Small networks in the QOperator form of ONNX Runtime's `quantize_static`."""

from pathlib import Path

import numpy as np
import onnx
from onnxruntime import quantization
from text_models import parse_lines

SHAPES = {"ResNet": (3, 16, 16), "MobileNet": (3, 16, 16), "ViT": (3, 16, 16)}


class _Writer:
    """Lines of a network, and its random weights."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, np.ndarray] = {}
        self._random = np.random.default_rng(0)

    def add(self, line: str) -> str:
        self.lines.append(line)
        return line.split(" = ", 1)[0]

    def weight(self, name: str, *shape: int) -> str:
        scale = np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
        self.constants[name] = (self._random.normal(size=shape) / scale).astype(np.float32)
        return name

    def conv(self, x: str, y: str, outer: int, inner: int, size: int = 1, more: str = "") -> str:
        w, b = self.weight(f"{y}_w", outer, inner, size, size), self.weight(f"{y}_b", outer)
        pads = f"pads={[size // 2] * 4}".replace(" ", "")
        return self.add(f"{y} = Conv({x}, {w}, {b}) {pads} {more}")

    def linear(self, x: str, y: str, inner: int, outer: int) -> str:
        return self.add(f"{y} = MatMul({x}, {self.weight(f'{y}_w', inner, outer)})")


def _write_resnet(net: _Writer) -> None:
    x = net.add(f"r0 = Relu({net.conv('x', 'c0', 8, 3, 3)})")
    x = net.add(f"p0 = MaxPool({x}) kernel_shape=[2,2] strides=[2,2]")
    a = net.add(f"a1 = Relu({net.conv(x, 'c1', 8, 8, 3)})")
    x = net.add(f"a2 = Add({net.conv(a, 'c2', 8, 8, 3)}, {x})")
    x = net.add(f"a3 = GlobalAveragePool({net.conv(x, 'c3', 16, 8, 3, 'strides=[2,2]')})")
    x = net.add(f"f = Flatten({x})")
    net.add(f"y = Gemm({x}, {net.weight('g_w', 16, 10)}, {net.weight('g_b', 10)})")


def _write_mobilenet(net: _Writer) -> None:
    x = net.add(f"r0 = Relu({net.conv('x', 'c0', 8, 3, 3, 'strides=[2,2]')})")
    d = net.add(f"r1 = LeakyRelu({net.conv(x, 'c1', 8, 1, 3, 'group=8')}) alpha=0.1")
    s = net.add(f"s0 = GlobalAveragePool({d})")
    s = net.add(f"s1 = Relu({net.conv(s, 'c2', 4, 8)})")
    s = net.add(f"s2 = Sigmoid({net.conv(s, 'c3', 8, 4)})")
    x = net.conv(net.add(f"m = Mul({d}, {s})"), "c4", 8, 8)
    x = net.add(f"j = Concat({x}, {d}) axis=1")
    x = net.add(f"f = Flatten({net.add(f'a = GlobalAveragePool({x})')})")
    net.add(f"y = Gemm({x}, {net.weight('g_w', 16, 10)}, {net.weight('g_b', 10)})")


def _write_vit(net: _Writer) -> None:
    net.constants |= {"tokens": np.array([0, 16, 16]), "heads": np.array([0, 16, 2, 8])}
    x = net.add(f"c0 = Conv(x, {net.weight('c0_w', 16, 3, 4, 4)}) strides=[4,4]")
    x = net.add(f"t = Transpose({net.add(f'r = Reshape({x}, tokens)')}) perm=[0,2,1]")
    turns = {"q": "[0,2,1,3]", "k": "[0,2,3,1]", "v": "[0,2,1,3]"}
    for name, perm in turns.items():
        net.add(f"{name}1 = Reshape({net.linear(x, f'{name}0', 16, 16)}, heads)")
        net.add(f"{name}2 = Transpose({name}1) perm={perm}")
    net.add(f"w = Softmax({net.add('s = MatMul(q2, k2)')}) axis=-1")
    net.add(f"o = Transpose({net.add('o0 = MatMul(w, v2)')}) perm=[0,2,1,3]")
    x = net.add(f"b = Add({net.linear(net.add('o1 = Reshape(o, tokens)'), 'o2', 16, 16)}, {x})")
    h = net.add(f"h = Sigmoid({net.linear(x, 'u', 16, 32)})")
    net.linear(net.add(f"e = Mul({h}, u)"), "y", 32, 10)


_WRITERS = {"ResNet": _write_resnet, "MobileNet": _write_mobilenet, "ViT": _write_vit}


class _Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, row: tuple[int, ...]) -> None:
        random = np.random.default_rng(1)
        rows = random.normal(size=(8, 1, *row)).astype(np.float32)
        self._rows = iter([{"x": sample} for sample in rows])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rows, None)


def make_operator_file(name: str, folder: Path) -> onnx.ModelProto:
    """Return a network with random weights, quantized to operators on codes.

    Weights have 7 bits, so that ONNX Runtime saturates no sums.
    """
    net = _Writer()
    _WRITERS[name](net)
    source, target = folder / "float.onnx", folder / "operators.onnx"
    onnx.save(parse_lines("\n".join(net.lines), net.constants, SHAPES[name]), source)
    quantization.quantize_static(
        source,
        target,
        _Samples(SHAPES[name]),
        quant_format=quantization.QuantFormat.QOperator,
        per_channel=name != "ViT",
        reduce_range=True,
        weight_type=quantization.QuantType.QInt8,
    )
    return onnx.load(target)
