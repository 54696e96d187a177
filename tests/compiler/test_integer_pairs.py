# SPDX-License-Identifier: Apache-2.0
"""Integer sums and products of two tensors equal those of float32 for all pairs of indices."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anybit.compiler.backends.integer_pairs import evaluate, fit_pair
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import add_indices, multiply_indices


def fit(kind, zeros, gains, divisor, offset, shift, levels=(256, 256), bounds=(0, 255)):
    """Return integer arithmetic after comparing it with an instruction on all pairs."""
    numbers = (np.array(x, np.float32) for x in (gains, [offset], [divisor]))
    at = kind(0, 0, 0, np.array(zeros, np.int32), *numbers, shift, *bounds)
    pair = fit_pair(at, *levels)
    first, second = np.indices(levels)
    expected = (add_indices if kind is p.Add else multiply_indices)(at, first, second)
    np.testing.assert_array_equal(evaluate(pair, first, second), expected)
    check_range(pair, first.astype(object), second.astype(object))
    return pair


def check_range(pair, first, second):
    """Check that all intermediate results fit the bits of the arithmetic."""
    if len(pair.multipliers) == 1:
        product = (first - pair.zeros[0]) * (second - pair.zeros[1])
        parts = [product, product * pair.multipliers[0]]
    else:
        parts = [x * by for x, by in zip((first, second), pair.multipliers, strict=True)]
        parts.append(sum(parts))
    for x in (*pair.multipliers, pair.term, *parts, parts[-1] + pair.term):
        assert -(2 ** (pair.bits - 1)) <= np.min(x) <= np.max(x) < 2 ** (pair.bits - 1)


CASES = {  # constants, and the largest size of the corrections in bytes
    "sum": (p.Add, (118, 0), (0.31047115, 0.85084677), 1, 0.99999994, 36, 0),
    "integer slopes": (p.Add, (127, 0), (2, 1), 1, 6.7e-18, 0, 0),
    "negative slope": (p.Add, (128, 3), (-0.4567, 0.3512), 1, 0.1, 90, 4),
    "ties to even": (p.Add, (128, 128), (0.125, 0.125), 0.25, 0, 128, 0),
    "ties, zero-point added before": (p.Add, (128, 128), (0.125, 0.125), 0.25, 7, 0, 0),
    "ties, odd zero-point added after": (p.Add, (128, 128), (0.125, 0.125), 0.25, 0, 7, 32),
    "ties that float32 breaks": (p.Add, (128, 128), (0.3, 0.7), 0.6, 17, 0, 2125),
    "offset that takes bits": (p.Add, (128, 128), (0.43, 0.21), 1, 2**20, 128 - 2**20, 1695),
    "product": (p.Multiply, (78, 0), (0.00450801, 1), 1, 0, 84, 0),
    "product with ties": (p.Multiply, (128, 128), (0.125, 0.125), 4, 0, 128, 0),
    "constant": (p.Add, (0, 0), (1e-45, 1e-45), 3e38, 9.4, 3, 0),
    "infinite": (p.Add, (128, 0), (np.inf, 1), 1, 0, 0, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_integer_pair_needs_32_bits(name):
    *constants, size = CASES[name]
    pair = fit(*constants)
    assert pair.bits == 32
    assert pair.size <= size


gains = st.floats(width=32) | st.floats(-2, 2, width=32)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([p.Add, p.Multiply]),
    st.tuples(*[st.integers(-5, 260) | st.integers(-(2**20), 2**20)] * 2),
    st.tuples(gains, gains),
    st.floats(2.0**-7, 16, width=32) | st.floats(0, width=32, exclude_min=True),
    st.floats(-300, 300, width=32) | st.floats(width=32),
    st.integers(-300, 300) | st.integers(-(2**20), 2**20),
    st.tuples(*[st.integers(1, 256)] * 2),
    st.tuples(*[st.integers(0, 255)] * 2).map(sorted),
)
@example(p.Add, (1, 1), (np.inf, np.inf), 1, 0, 0, (256, 256), (0, 255))
@example(p.Multiply, (2**20, 2**20), (1e-3, 1e-3), 1, 0, 0, (256, 256), (0, 255))
@example(p.Multiply, (1, 1), (-1.5, 0.5), 0.5, 0, 3, (16, 16), (3, 15))
def test_integer_pair_equals_float_arithmetic(
    kind, zeros, gains, divisor, offset, shift, levels, bounds
):
    fit(kind, zeros, gains, divisor, offset, shift, levels, bounds)
