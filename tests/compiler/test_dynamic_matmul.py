# SPDX-License-Identifier: Apache-2.0
"""DynamicMatMul: codes, scales and products of two computed tensors, bit for bit."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from small_models import model

from anybit.onnx.library import register
from anybit.onnx.operators.dynamic_matmul import make_dynamic_matmul_schema

SHAPES = [
    ((3, 5), (5, 4)),
    ((1, 1), (1, 1)),
    ((2, 3, 7), (2, 7, 17)),
    ((2, 3, 65, 32), (2, 3, 32, 129)),
    ((4, 70, 33), (33, 15)),
    ((2, 1, 5, 8), (1, 3, 8, 16)),
    ((6, 16), (2, 2, 16, 31)),
    ((2, 1, 1000), (2, 1000, 3)),
    ((0, 3, 4), (0, 4, 2)),
    ((2, 0, 4), (2, 4, 2)),
    ((2, 3, 4), (2, 4, 0)),
    ((2, 3, 0), (2, 0, 5)),
    ((0, 3, 4), (4, 2)),
]


@dataclass(frozen=True)
class Format:
    """Codes, and how a scale follows from the numbers."""

    lowest: int = -128
    highest: int = 127
    asymmetric: int = 0
    whole: int = 0

    @property
    def steps(self):
        return self.highest - self.lowest if self.asymmetric else self.highest

    @property
    def least(self):
        return np.float32(self.steps * 2.0**-124)

    @property
    def most(self):
        return np.nextafter(np.float32(np.finfo(np.float32).max / self.steps), np.float32(0))

    def attributes(self, name):
        fields = ("lowest", "highest", "asymmetric", "whole", "steps", "least", "most")
        numbers = {field: getattr(self, field) for field in fields}
        numbers |= {field: float(numbers[field]) for field in ("steps", "least", "most")}
        return {f"{name}_{field}": number for field, number in numbers.items()}

    def quantize(self, x, axis):
        """Return codes less the zero-points, and scales, as the documentation defines them."""
        axes = None if self.whole else axis
        marked = np.where(np.isnan(x), np.float32(np.inf), x)
        high = np.maximum(marked.max(axes, keepdims=True, initial=0), np.float32(0))
        low = np.minimum(np.where(np.isnan(x), -np.inf, x).min(axes, keepdims=True, initial=0), 0)
        low = low.astype(np.float32)
        width = high - low if self.asymmetric else np.maximum(high, -low)
        scale = np.minimum(np.maximum(width, self.least) / np.float32(self.steps), self.most)
        scale = np.where(np.isinf(width), np.float32(np.inf), scale).astype(np.float32)
        zero = np.zeros_like(scale)
        if self.asymmetric:
            zero = np.clip(
                np.rint(np.float32(self.lowest) - low / scale), self.lowest, self.highest
            )
            zero = np.where(np.isnan(zero), np.float32(self.lowest), zero)
        y = x / scale + zero
        y = np.clip(np.rint(np.where(np.isnan(y), zero, y)), self.lowest, self.highest)
        return (y - zero).astype(np.int64), scale


SIGNED, UNSIGNED = Format(), Format(0, 255, 1)
FORMATS = [
    (SIGNED, SIGNED),
    (UNSIGNED, SIGNED),
    (UNSIGNED, UNSIGNED),
    (Format(-8, 7), Format(-128, 127, whole=1)),
    (Format(0, 255, 1, 1), Format(0, 15, 1)),
]


@np.errstate(all="ignore")
def multiply(a, b, first, second):
    """Return the product, defined operation by operation."""
    (codes, scale), (others, other) = first.quantize(a, -1), second.quantize(b, -2)
    sums = (codes @ others).astype(np.float32)
    return sums * np.minimum(scale, other) * np.maximum(scale, other)


def make_model(first, second, transposed=0, **changes):
    attributes = (
        first.attributes("first") | second.attributes("second") | {"transposed": transposed}
    )
    attributes |= changes
    kept = {name: value for name, value in attributes.items() if value is not None}
    node = helper.make_node("DynamicMatMul", ["a", "b"], ["y"], domain="anybit", **kept)
    shapes = {"a": None, "b": None}
    return model([node], inputs=shapes, opsets={"": 18, "anybit": 1}, ir_version=9)


def run(model, a, b, threads=1):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    register(options)
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers)
    (y,) = session.run(None, {"a": a, "b": b})
    return y


def assert_same_bits(actual, expected):
    assert actual.shape == expected.shape
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    assert actual[~nan].tobytes() == expected[~nan].astype(np.float32).tobytes()


def make_factors(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(0.3, 1, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_products_have_the_defined_bits(shapes, formats, transposed):
    a, b = make_factors(shapes)
    factor = np.ascontiguousarray(b.swapaxes(-1, -2)) if transposed else b
    actual = run(make_model(*formats, transposed), a, factor)
    assert_same_bits(actual, multiply(a, b, *formats))


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("formats", FORMATS)
def test_hostile_rows_and_columns(formats, transposed):
    a, b = make_factors([(2, 12, 33), (2, 33, 40)])
    numbers = np.float32([np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-41, 0, 3.4e38])
    a[0, :8, 3] = numbers
    a[1, 0], a[1, 1], a[1, 2], a[1, 3] = 0, a[1, 1] * 1e37, a[1, 2] * 1e-40, -np.abs(a[1, 3])
    b[0, 5, 20:28] = numbers
    b[1, :, 0], b[1, :, 39] = 0, b[1, :, 39] * 1e37
    b[1, :, 1], b[1, :, 2] = b[1, :, 1] * 1e-38, np.abs(b[1, :, 2])
    factor = np.ascontiguousarray(b.swapaxes(-1, -2)) if transposed else b
    assert_same_bits(run(make_model(*formats, transposed), a, factor), multiply(a, b, *formats))


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("formats", FORMATS[:3])
def test_numbers_next_to_half_steps(formats, transposed):
    """Round numbers at and around all boundaries of codes, of scales of any magnitude."""
    rng = np.random.default_rng(0)
    largest = np.float32(np.exp2(rng.uniform(-126, 120, 60)) * rng.uniform(1, 2, 60))
    steps = np.float32(np.repeat(rng.permutation(np.arange(-127.5, 127)), 3))
    a = largest[:, None] / np.float32(127) * steps
    ulps = np.tile(np.int32([-1, 0, 1]), len(steps) // 3)
    a = (a.view(np.int32) + ulps).view(np.float32)
    a[:, 0] = largest
    a = np.minimum(np.abs(a), largest[:, None]) * np.sign(a)
    ones = np.eye(a.shape[1], 40, dtype=np.float32)
    for first, second in ((a, ones), (ones.T, a.T)):
        b = np.ascontiguousarray(second.T if transposed else second)
        expected = multiply(first, second, *formats)
        first = np.ascontiguousarray(first)
        assert_same_bits(run(make_model(*formats, transposed), first, b), expected)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("formats", FORMATS)
@pytest.mark.parametrize("order", ["0213", "2103", "1203"])
@pytest.mark.parametrize(
    "shapes", [((2, 3, 37, 17), (2, 3, 17, 33)), ((2, 1, 5, 64), (1, 3, 64, 8))]
)
def test_orders_of_axes_do_not_change_a_bit(shapes, order, formats, transposed):
    """Read and write arrays that are stored in another order of axes."""
    a, b = make_factors(shapes)
    expected = multiply(a, b, *formats)
    axes = [int(digit) for digit in order]
    factor = b.swapaxes(-1, -2) if transposed else b
    stored = [np.ascontiguousarray(x.transpose(np.argsort(axes))) for x in (a, factor)]
    moved = {f"{name}_axes": order for name in ("first", "second", "result")}
    for threads in (1, 3):
        actual = run(make_model(*formats, transposed, **moved), *stored, threads)
        assert_same_bits(actual, expected.transpose(axes))


@pytest.mark.parametrize("axes", ["02", "0123", "012 ", "021", "0/2", "001", "10"])
@pytest.mark.parametrize("name", ["first", "second", "result"])
def test_axes_that_are_no_order(name, axes):
    changes = {f"{name}_axes": axes}
    with pytest.raises(Exception, match="axes must be a permutation of 3 axes"):
        run(make_model(SIGNED, SIGNED, **changes), *make_factors([(2, 3, 4), (2, 4, 5)]))


@pytest.mark.parametrize("factor", np.float32([0.3, -0.0]))
@pytest.mark.parametrize("depth", [7, 2**18 + 3])
def test_factor_multiplies_last(depth, factor):
    a, b = make_factors([(3, depth), (depth, 19)])
    a[1], b[:, 3] = a[1] * np.float32(1e30), b[:, 3] * np.float32(1e20)
    with np.errstate(invalid="ignore"):  # of infinity * -0
        expected = multiply(a, b, SIGNED, UNSIGNED) * factor
    assert_same_bits(run(make_model(SIGNED, UNSIGNED, factor=float(factor)), a, b), expected)


def test_large_and_small_scales_do_not_overflow_between():
    """Multiply by the smaller scale first: both orders of the operands are finite."""
    a, b = np.full((1, 8), 1e38, np.float32), np.full((8, 1), 1e-34, np.float32)
    assert run(make_model(SIGNED, SIGNED), a, b).item() == pytest.approx(8e4, rel=1e-5)
    assert run(make_model(SIGNED, SIGNED), b.T, a.T).item() == pytest.approx(8e4, rel=1e-5)


def test_sums_of_more_than_32_bits():
    depth = 2**18 + 3
    a, b = np.ones((2, depth), np.float32), np.ones((depth, 19), np.float32)
    a[1, ::2] = -1
    b[:, 3] = 0.3
    for formats in (FORMATS[0], FORMATS[2]):
        assert_same_bits(run(make_model(*formats), a, b), multiply(a, b, *formats))


@pytest.mark.parametrize("shapes", [((7, 300, 64), (7, 64, 200)), ((1, 3000, 900), (900, 70))])
def test_threads_and_blocks_do_not_change_a_bit(shapes):
    a, b = make_factors(shapes)
    expected = multiply(a, b, SIGNED, UNSIGNED)
    for threads in (1, 3):
        assert_same_bits(run(make_model(SIGNED, UNSIGNED), a, b, threads), expected)


@pytest.mark.parametrize(
    ("shapes", "transposed"),
    [
        (((3, 4), (3, 4)), 0),
        (((3, 4), (4, 3)), 1),
        (((2, 3, 4), (3, 4, 2)), 0),
        (((2**40, 1, 1, 0), (2**40, 0, 1)), 0),
        (((4,), (4, 2)), 0),
        (((3, 4), (4,)), 0),
    ],
)
def test_sizes_that_do_not_fit(shapes, transposed):
    with pytest.raises(Exception, match="cannot be multiplied"):
        run(make_model(SIGNED, SIGNED, transposed), *make_factors(shapes))


def test_empty_products_of_many_matrices():
    a, b = np.zeros((2**36, 1, 0, 1), np.float32), np.zeros((2**20, 1, 1), np.float32)
    assert run(make_model(SIGNED, SIGNED), a, b).shape == (2**36, 2**20, 0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_steps": 0.0}, "must be positive numbers"),
        ({"second_least": float("nan")}, "must be positive numbers"),
        ({"second_most": float("inf")}, "must be positive numbers"),
        ({"first_lowest": 1}, "codes of up to 8 bits around 0, got 1 and 127"),
        ({"second_highest": 2**40}, "codes of up to 8 bits around 0"),
        ({"second_highest": None}, "second_highest"),
        ({"transposed": None}, "transposed"),
        ({"transposed": 1.5}, "attribute transposed must be an integer"),
        ({"first_steps": 127}, "attribute first_steps must be a number"),
    ],
)
def test_attributes_that_no_quantizer_has(changes, message):
    with pytest.raises(Exception, match=message):
        run(make_model(SIGNED, SIGNED, **changes), *make_factors([(3, 4), (4, 5)]))


def test_schema_describes_the_node():
    schema = make_dynamic_matmul_schema()
    node = make_model(SIGNED, replace(SIGNED, whole=1)).graph.node[0]
    optional = {"factor", "first_axes", "second_axes", "result_axes"}
    assert set(schema.attributes) - optional == {attribute.name for attribute in node.attribute}
    assert not any(schema.attributes[name].required for name in optional)
    assert all(schema.attributes[a.name].type.value == a.type for a in node.attribute)


@pytest.mark.slow
def test_levels_do_not_change_a_bit(level):
    """Run the other tests at a level: the library of ONNX Runtime reads it when it is loaded."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        [*command, "-k", "not levels"],
        env={**os.environ, "ANYBIT_ISA": level},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
