# SPDX-License-Identifier: Apache-2.0
"""Compiled models equal the float graph in cases that are easy to get wrong."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from text_models import FOUR, QUANTIZED, RANDOM, parse_lines, random_rows, random_weights

import anybit


def image(channels: int = 4, size: int = 5) -> tuple[int, ...]:
    return channels, size, size


CASES: dict[str, Any] = {
    # A runtime may add the bias before it has the whole sum.
    "a bias off the grid, long sums": parse_lines(
        f"{FOUR}\ny = Gemm(q, w, c)",
        {**QUANTIZED, "w": random_weights(784, 16), "c": RANDOM.normal(size=16).astype(np.float32)},
        (784,),
    ),
    "a bias of a convolution off the grid": parse_lines(
        f"{FOUR}\ny = Conv(q, w, c) pads=[1,1,1,1]",
        {
            **QUANTIZED,
            "w": random_weights(8, 96, 3, 3),
            "c": RANDOM.normal(size=8).astype(np.float32),
        },
        image(96),
    ),
    "alpha and beta": parse_lines(
        f"{FOUR}\ny = Gemm(q, w, c) alpha=0.3 beta=0.7",
        {**QUANTIZED, "w": random_weights(200, 5), "c": RANDOM.normal(size=5).astype(np.float32)},
        (200,),
    ),
    "a padded zero is not a sign": parse_lines(
        "q = BipolarQuant(x, one)\nk = BipolarQuant(w, one)\n"
        "y = Conv(q, k) pads=[1,1,0,2] strides=[2,1]",
        {**QUANTIZED, "w": random_weights(5, 3, 3, 3)},
        image(3),
    ),
    "zero is not among the codes of a padded tensor": parse_lines(
        "a = Quant(x, s, one, b) signed=0\nq = Clip(a, low, high)\ny = Conv(q, w) pads=[1,1,1,1]",
        {**QUANTIZED, "low": 0.5, "high": 2.0, "w": random_weights(5, 3, 3, 3)},
        image(3),
    ),
    "pools leave out what is outside": parse_lines(
        f"{FOUR}\nm = MaxPool(q) kernel_shape=[3,3] pads=[1,1,1,1] strides=[2,2]\ny = Conv(m, w)",
        {**QUANTIZED, "w": random_weights(5, 4, 1, 1)},
        image(),
    ),
    "pools in ceil mode": parse_lines(
        f"{FOUR}\nm = MaxPool(q) kernel_shape=[2,2] strides=[2,2] ceil_mode=1\ny = Conv(m, w)",
        {**QUANTIZED, "w": random_weights(5, 4, 1, 1)},
        image(),
    ),
    "averages that count pads": parse_lines(
        f"{FOUR}\nm = AveragePool(q) kernel_shape=[2,2] pads=[1,1,0,0] count_include_pad=1\n"
        "k = Quant(m, s, z, b)\ny = Conv(k, w)",
        {**QUANTIZED, "w": random_weights(5, 4, 1, 1)},
        image(),
    ),
    "averages that do not": parse_lines(
        f"{FOUR}\nm = AveragePool(q) kernel_shape=[2,2] pads=[1,1,0,0]\n"
        "k = Quant(m, s, z, b)\ny = Conv(k, w)",
        {**QUANTIZED, "w": random_weights(5, 4, 1, 1)},
        image(),
    ),
    "an inner tensor is read by floats too": parse_lines(
        f"{FOUR}\na = MatMul(q, w)\nr = Quant(a, s, z, b)\nt = MatMul(r, v)\n"
        "e = Erf(a)\ny = Add(t, e)",
        {**QUANTIZED, "w": random_weights(8, 8), "v": random_weights(8, 8)},
        (8,),
    ),
    "weights read twice": parse_lines(
        f"{FOUR}\na = MatMul(q, w)\nr = Quant(a, s, z, b)\ny = MatMul(r, w)",
        {**QUANTIZED, "w": random_weights(8, 8)},
        (8,),
    ),
    "a product of two tensors of codes": parse_lines(
        f"{FOUR}\nt = Transpose(q) perm=[0,2,1]\na = MatMul(q, t)\ny = Quant(a, s, z, b)",
        QUANTIZED,
        (3, 4),
    ),
    "weights on the left": parse_lines(
        f"{FOUR}\na = MatMul(w, q)\ny = Quant(a, s, z, b)",
        {**QUANTIZED, "w": random_weights(5, 3)},
        (3, 4),
    ),
    "weights of a batch of their own": parse_lines(
        f"{FOUR}\na = MatMul(q, w)\ny = Quant(a, s, z, b)",
        {**QUANTIZED, "w": random_weights(2, 4, 4)},
        (2, 3, 4),
    ),
    "a transposed convolution": parse_lines(
        f"{FOUR}\na = ConvTranspose(q, w) strides=[2,2]\ny = Quant(a, s, z, b)",
        {**QUANTIZED, "w": random_weights(4, 3, 3, 3)},
        image(),
    ),
    "sums over the batch": parse_lines(
        f"{FOUR}\na = ReduceSum(q, axis) keepdims=1\nr = Sub(q, a)\nt = Quant(r, s, z, b)\n"
        "y = MatMul(t, w)",
        {**QUANTIZED, "axis": np.int64([0]), "w": random_weights(4, 4)},
        (4,),
    ),
    "rows in another order": parse_lines(
        f"{FOUR}\na = Gather(q, at) axis=0\ny = MatMul(a, w)",
        {**QUANTIZED, "at": np.int64([1, 0]), "w": random_weights(4, 4)},
        (4,),
    ),
    "a reshape that mixes rows": parse_lines(
        f"{FOUR}\na = Reshape(q, sizes)\nt = MatMul(a, w)\ny = Quant(t, s, z, b)",
        {**QUANTIZED, "sizes": np.int64([-1, 2]), "w": random_weights(2, 3)},
        (4,),
    ),
    "a batch at another place": parse_lines(
        f"{FOUR}\na = Transpose(q) perm=[1,0,2]\nt = MatMul(a, w)\ny = Quant(t, s, z, b)",
        {**QUANTIZED, "w": random_weights(4, 3)},
        (4, 4),
    ),
    "scales below zero": parse_lines(
        "q = Quant(x, minus, z, b) rounding_mode='HALF_UP'\na = MatMul(q, w)\n"
        "y = Quant(a, minus, z, b) rounding_mode='HALF_DOWN'",
        {**QUANTIZED, "minus": -0.25, "w": random_weights(8, 8)},
        (8,),
    ),
    "a scale per channel that differs in sign": parse_lines(
        f"{FOUR}\na = Conv(q, w)\nr = Mul(a, signs)\ny = Quant(r, s, z, b)",
        {
            **QUANTIZED,
            "w": random_weights(3, 4, 1, 1),
            "signs": np.float32([1, -0.3, 0]).reshape(3, 1, 1),
        },
        image(),
    ),
    "a scale per element": parse_lines(
        "q = Quant(x, many, z, b)\na = MatMul(q, w)\ny = Quant(a, s, z, b)",
        {
            **QUANTIZED,
            "many": np.float32(2.0 ** RANDOM.integers(-3, 1, 6)),
            "w": random_weights(6, 4),
        },
        (6,),
    ),
    "a width per channel": parse_lines(
        f"{FOUR}\na = MatMul(q, w)\ny = Quant(a, s, z, widths)",
        {**QUANTIZED, "w": random_weights(6, 4), "widths": np.float32([1, 2, 5, 8])},
        (6,),
    ),
    "one value of a non-monotonic function is left": parse_lines(
        f"{FOUR}\na = MatMul(q, w)\nh = HardSwish(a)\nr = Quant(h, s, z, one) narrow=1\n"
        "y = MatMul(r, w)",
        {**QUANTIZED, "w": random_weights(6, 6)},
        (6,),
    ),
    "pairs of integers after a non-monotonic function of many sums": parse_lines(
        "i = QuantizeLinear(x, s, z8)\nq = DequantizeLinear(i, s, z8)\na = MatMul(q, w)\n"
        "n = Mul(a, g)\nh = HardSwish(n)\nj = QuantizeLinear(h, s, z8)\n"
        "r = DequantizeLinear(j, s, z8)\ny = MatMul(r, w)",
        {
            **QUANTIZED,
            "z8": np.array(0, np.int8),
            "w": random_weights(80, 80, levels=127),
            "g": np.float32(2.0**-10),
        },
        (80,),
    ),
    "two pairs of integers in a row": parse_lines(
        "i = QuantizeLinear(x, many, z6) axis=1\nq = DequantizeLinear(i, many, z6) axis=1\n"
        "j = QuantizeLinear(q, s, z8)\nr = DequantizeLinear(j, s, z8)\ny = MatMul(r, w)",
        {
            **QUANTIZED,
            "z8": np.array(3, np.int8),
            "z6": np.zeros(6, np.int8),
            "many": np.float32(RANDOM.uniform(0.01, 0.5, 6)),
            "w": random_weights(6, 6),
        },
        (6,),
    ),
    "only a quantizer": parse_lines(FOUR.replace("q =", "y ="), QUANTIZED, (6,)),
    "one row of one": parse_lines(
        f"{FOUR}\na = MatMul(q, w)\ny = BipolarQuant(a, one)", {**QUANTIZED, "w": [[1.0]]}, (1,)
    ),
}
ROUNDED = {
    "a bias off the grid, long sums",
    "a bias of a convolution off the grid",
    "alpha and beta",
}
"""Their sums depend on the order of summation."""

CASES = {
    name: onnx.ModelProto.FromString(proto.SerializeToString()) for name, proto in CASES.items()
}


@pytest.mark.parametrize("name", CASES)
def test_compile_equals_graph_in_cases(name):
    proto = CASES[name]
    x = random_rows(proto, 2 if "order" in name else 4)
    compiled = anybit.compile(proto)
    actual, expected = compiled.run(x)["y"], anybit.load(proto).run(x)["y"]
    if name in ROUNDED:
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
        assert set(compiled.report.guarantees) <= {"bounded"}
    else:
        np.testing.assert_array_equal(actual, expected)
        assert set(compiled.report.guarantees) <= {"exact"}


@pytest.mark.parametrize("terms", [600, 3000, 70000])
def test_compile_leaves_sums_beyond_int32_or_float32(terms):
    """Use sums that float32 rounds (518 terms) and int32 overflows (66 000)."""
    proto = parse_lines(
        "q = Quant(x, one, z, b8) signed=0\ny = MatMul(q, w)",
        {**QUANTIZED, "w": np.full((terms, 3), 127, np.float32)},
        (terms,),
    )
    x = RANDOM.integers(200, 300, (3, terms)).astype(np.float32)
    exact = np.minimum(x, 255).astype(np.int64).sum(axis=1) * 127
    y = anybit.compile(proto).run(x)["y"]
    np.testing.assert_allclose(y, np.repeat(exact[:, None], 3, 1), rtol=1e-6)


def test_compile_keeps_order_of_outputs():
    proto = onnx.ModelProto()
    proto.CopyFrom(CASES["an inner tensor is read by floats too"])
    for name in ("r", "q", "a"):
        proto.graph.output.append(helper.make_tensor_value_info(name, 1, None))
    x = random_rows(proto)
    actual, expected = anybit.compile(proto).run(x), anybit.load(proto).run(x)
    assert list(actual) == ["y", "r", "q", "a"]
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


def test_compile_returns_no_rows_for_no_rows():
    """Run integers to integers: a session refuses arrays without elements."""
    proto = CASES["weights read twice"]
    y = anybit.compile(proto).run(np.zeros((0, 8), np.float32))["y"]
    assert y.shape == (0, 8)
