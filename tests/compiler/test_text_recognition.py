# SPDX-License-Identifier: Apache-2.0
"""Networks of text recognition, as Paddle exports them, are one region each."""

import numpy as np
import onnx
import pytest
from small_models import kinds
from text_models import parse

import anybit
from anybit.compiler.program import program as p

HEIGHT, WIDTH, CHANNELS, HEADS, CLASSES = 8, 12, 16, 4, 11
TOKENS = WIDTH // 2
SWISH = "{y}g = Sigmoid ({x}) {y} = Mul ({x}, {y}g)"
# Layer normalization, heads and shapes in the operators of opset 11.
NORM = """
    {y}m = ReduceMean <axes = [-1]> ({x})
    {y}d = Sub ({x}, {y}m)
    {y}p = Pow ({y}d, two)
    {y}v = ReduceMean <axes = [-1]> ({y}p)
    {y}e = Add ({y}v, epsilon)
    {y}r = Sqrt ({y}e)
    {y}n = Div ({y}d, {y}r)
    {y}g = Mul ({y}n, gain)
    {y} = Add ({y}g, offset)
"""
BLOCK = (
    NORM.format(x="{x}", y="{y}1")
    + """
    {y}s = Shape ({y}1)
    {y}t = Slice ({y}s, n1, n2, n0)
    {y}to = Concat <axis = 0> (n0, {y}t, n3, heads, width)
    {y}a = MatMul ({y}1, qkv)
    {y}b = Add ({y}a, bias)
    {y}h = Reshape ({y}b, {y}to)
    {y}w = Transpose <perm = [2, 0, 3, 1, 4]> ({y}h)
    {y}q5 = Slice ({y}w, n0, n1, n0)
    {y}q4 = Squeeze <axes = [0]> ({y}q5)
    {y}q = Mul ({y}q4, scale)
    {y}k5 = Slice ({y}w, n1, n2, n0)
    {y}k4 = Squeeze <axes = [0]> ({y}k5)
    {y}k = Transpose <perm = [0, 1, 3, 2]> ({y}k4)
    {y}v5 = Slice ({y}w, n2, n3, n0)
    {y}v4 = Squeeze <axes = [0]> ({y}v5)
    {y}c = MatMul ({y}q, {y}k)
    {y}f = Softmax <axis = 3> ({y}c)
    {y}o4 = MatMul ({y}f, {y}v4)
    {y}ot = Transpose <perm = [0, 2, 1, 3]> ({y}o4)
    {y}om = Concat <axis = 0> (n0, {y}t, channels)
    {y}o = Reshape ({y}ot, {y}om)
    {y}l = MatMul ({y}o, last)
    {y}x = Add ({x}, {y}l)
    """
    + NORM.format(x="{y}x", y="{y}2")
    + "{y}i = MatMul ({y}2, inner)\n"
    + SWISH.format(x="{y}i", y="{y}j")
    + "{y}u = MatMul ({y}j, outer)\n {y} = Add ({y}x, {y}u)\n"
)
NETWORK = (
    "c0 = Conv <pads = [1, 1, 1, 1], strides = [2, 1]> (x, w0)\n"
    + SWISH.format(x="c0", y="a0")
    + "\n{pool}\n c1 = Conv (p0, w1)\n"
    + SWISH.format(x="c1", y="a1")
    + """
    is = Shape (a1)
    two0 = Slice (is, n0, n2, n0)
    flat = Concat <axis = 0> (two0, minus)
    r0 = Reshape (a1, flat)
    t0 = Transpose <perm = [0, 2, 1]> (r0)
    """
    + BLOCK.format(x="t0", y="b1")
    + BLOCK.format(x="b1", y="b2")
    + NORM.format(x="b2", y="z")
    + """
    iw = Slice (is, n3, n4, n0)
    image = Concat <axis = 0> (n0, n1, iw, channels)
    r1 = Reshape (z, image)
    t1 = Transpose <perm = [0, 3, 1, 2]> (r1)
    c2 = Conv (t1, w2)
    j = Concat <axis = 1> (p0, c2)
    c3 = Conv <pads = [0, 1, 0, 1]> (j, w3)
    """
    + SWISH.format(x="c3", y="a3")
    + """
    s = Squeeze <axes = [2]> (a3)
    t = Transpose <perm = [0, 2, 1]> (s)
    l = MatMul (t, classes)
    lb = Add (l, none)
    y = Softmax <axis = 2> (lb)
    """
)
MEAN = "p0 = AveragePool <kernel_shape = [4, 2], strides = [4, 2]> (a0)"
STRIDED = "p0 = Conv <kernel_shape = [4, 2], strides = [4, 2], group = 16> (a0, wp)"


def recognition(pool: str) -> onnx.ModelProto:
    """Return a network of convolutions, two blocks of attention and a classifier of columns."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def matrix(*shape: int) -> np.ndarray:
        return np.ascontiguousarray(weights(*shape[::-1]).T)

    numbers = {"heads": HEADS, "width": CHANNELS // HEADS, "channels": CHANNELS, "minus": -1}
    constants = {
        "w0": weights(16, 3, 3, 3),
        "wp": weights(16, 1, 4, 2),
        "w1": weights(CHANNELS, 16, 1, 1),
        "w2": weights(16, CHANNELS, 1, 1),
        "w3": weights(CHANNELS, 32, 1, 3),
        "qkv": matrix(CHANNELS, 3 * CHANNELS),
        "last": matrix(CHANNELS, CHANNELS),
        "inner": matrix(CHANNELS, 2 * CHANNELS),
        "outer": matrix(2 * CHANNELS, CHANNELS),
        "classes": 3 * matrix(CHANNELS, CLASSES),
        "bias": rng.normal(0, 0.1, 3 * CHANNELS).astype(np.float32),
        "none": rng.normal(0, 0.1, CLASSES).astype(np.float32),
        "gain": rng.normal(1, 0.1, CHANNELS).astype(np.float32),
        "offset": rng.normal(0, 0.1, CHANNELS).astype(np.float32),
        "two": np.float32(2),
        "epsilon": np.float32(1e-5),
        "scale": np.float32(0.5),
        **{f"n{number}": np.int64([number]) for number in range(5)},
        **{name: np.int64([number]) for name, number in numbers.items()},
    }
    text = NETWORK.replace("{pool}", pool)
    head = f"g (float[n, 3, {HEIGHT}, w] x) => (float[n, t, {CLASSES}] y)"
    return parse(f"{head} {{ {text} }}", constants, opset=12)


@pytest.mark.parametrize(
    ("pool", "integer_only", "regions"),
    [
        (MEAN, True, 1),
        # A mean of floats over a window stays float, between two regions.
        pytest.param(MEAN, False, 2, marks=pytest.mark.slow),
        pytest.param(STRIDED, True, 1, marks=pytest.mark.slow),
        pytest.param(STRIDED, False, 1, marks=pytest.mark.slow),
    ],
)
def test_text_recognition_is_one_region(pool: str, integer_only: bool, regions: int) -> None:
    data = np.random.default_rng(1).normal(size=(12, 3, HEIGHT, WIDTH)).astype(np.float32)
    quantized = anybit.quantize(
        recognition(pool), data, integer_only=integer_only, scales="power-of-two", effort="fast"
    )
    assert kinds(quantized.model).count("LayerNormalization") == 5
    compiled = anybit.compile(quantized, shapes={"x": (1, 3, HEIGHT, WIDTH)})
    programs = compiled.report.programs
    assert len(programs) == regions
    assert all(layer.guarantee for layer in compiled.report.products)
    functions = [type(at) for program in programs for at in program.instructions]
    assert functions.count(p.LayerNorm) == 5
    assert functions.count(p.Softmax) == 3
    (expected,) = anybit.load(quantized).run(data[:3]).values()
    (actual,) = compiled.run(data[:3]).values()
    assert actual.shape == (3, TOKENS, CLASSES)
    # Functions of floats round otherwise, and a code may then differ by one step.
    assert np.abs(actual - expected).max() < 0.05
    assert np.median(np.abs(actual - expected)) < 1e-3
    assert np.ptp(expected) > 0.3
