# SPDX-License-Identifier: Apache-2.0
"""The proof that 16 bits hold the pairs of products of every integer kernel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from saturating_pairs import avx2_sums, exact_sums, neon_sums, worst_codes

from anybit.onnx.qdq.saturation import CodeSpan, fits_accumulators

UNSIGNED, SIGNED = CodeSpan(0, 255, False), CodeSpan(-128, 127, True)


def column(*weights: int) -> np.ndarray:
    return np.array(weights, np.int8)[:, None]


@pytest.mark.parametrize("codes", [UNSIGNED, SIGNED])
def test_saturation_sums_fit_holds_for_weights_of_seven_bits(codes: CodeSpan) -> None:
    weights = np.random.default_rng(0).integers(-64, 64, (300, 20)).astype(np.int8)
    assert fits_accumulators(codes, weights)
    assert fits_accumulators(codes, np.full((300, 3), -64, np.int8))


@pytest.mark.parametrize("codes", [UNSIGNED, SIGNED])
@pytest.mark.parametrize("pair", [(65, 64), (-65, -64), (127, 2), (-128, -1)])
def test_saturation_sums_fit_refuses_pairs_beyond_sixteen_bits(
    codes: CodeSpan, pair: tuple[int, int]
) -> None:
    first, second = pair
    assert not fits_accumulators(codes, column(first, second))
    # Wherever they stand: kernels of other layouts add other pairs.
    assert not fits_accumulators(codes, column(first, 0, 0, 1, 0, second, 0))
    assert fits_accumulators(codes, column(first, -second, 0))


@pytest.mark.parametrize("weight", [127, -128])
def test_saturation_sums_fit_holds_for_one_product(weight: int) -> None:
    assert fits_accumulators(UNSIGNED, column(weight))
    assert fits_accumulators(SIGNED, column(weight))
    assert fits_accumulators(UNSIGNED, column(weight, 0, 0))
    assert fits_accumulators(UNSIGNED, np.zeros((0, 3), np.int8))


def test_saturation_sums_fit_knows_narrow_activations() -> None:
    weights = column(127, 127, -128, -128)
    assert fits_accumulators(CodeSpan(0, 15, False), weights)
    assert fits_accumulators(CodeSpan(0, 127, False), weights)
    assert not fits_accumulators(CodeSpan(0, 129, False), weights)
    assert not fits_accumulators(CodeSpan(-8, 7, True), weights)  # 120 .. 135 on x86
    assert fits_accumulators(CodeSpan(-8, 7, True), column(100, 100, -110, -110))


def test_sums_fit_refuses_the_one_pair_of_signed_bytes_beyond_sixteen_bits() -> None:
    weights = np.zeros((16, 1), np.int8)
    weights[[0, 8]] = -128
    x = np.full((1, 16), -128, np.int8)
    assert exact_sums(x, weights) == 2**15
    assert neon_sums(x, weights) == -(2**15)
    assert not fits_accumulators(CodeSpan(-128, -128, True), weights)


def test_saturation_sums_fit_refuses_sums_beyond_thirty_two_bits() -> None:
    assert fits_accumulators(UNSIGNED, np.full((130000, 1), 64, np.int8))
    assert not fits_accumulators(UNSIGNED, np.full((140000, 1), 64, np.int8))


@st.composite
def products(draw: st.DrawFn) -> tuple[np.ndarray, CodeSpan]:
    shape = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    most = draw(st.sampled_from([7, 40, 63, 64, 65, 70, 100, 127]))
    weights = draw(arrays.arrays(np.int8, shape, elements=st.integers(-most - 1, most)))
    signed = draw(st.booleans())
    span = (-128, 127) if signed else (0, 255)
    ends = st.integers(*span) | st.sampled_from([*span, 0])
    lowest, highest = sorted((draw(ends), draw(ends)))
    return weights, CodeSpan(lowest, highest, signed)


@given(products(), st.randoms(use_true_random=False))
def test_saturation_sums_fit_means_exact_sums_in_every_layout(
    case: tuple[np.ndarray, CodeSpan], random: object
) -> None:
    weights, codes = case
    if not fits_accumulators(codes, weights):
        return
    dtype = np.dtype(np.int8 if codes.signed else np.uint8)
    x = worst_codes(weights, codes.lowest, codes.highest, dtype)
    order = np.arange(len(weights))
    for _ in range(3):
        for sums in (avx2_sums, neon_sums):
            got = sums(x[:, order], weights[order])
            np.testing.assert_array_equal(got, exact_sums(x, weights))
        random.shuffle(order)  # type: ignore[attr-defined]


@given(arrays.arrays(np.int8, (2, 1)), st.booleans())
def test_saturation_sums_fit_is_exact_for_two_weights(weights: np.ndarray, signed: bool) -> None:
    codes, dtype = (SIGNED, np.int8) if signed else (UNSIGNED, np.uint8)
    ends = np.array([codes.lowest, codes.highest])
    x = np.stack(np.meshgrid(ends, ends), -1).reshape(-1, 2).astype(dtype)
    apart = np.zeros((16, 1), np.int8)
    apart[[0, 8]] = weights  # a pair of ARM's
    spread = np.zeros((len(x), 16), dtype)
    spread[:, [0, 8]] = x
    exact = np.array_equal(avx2_sums(x, weights), exact_sums(x, weights))
    exact &= np.array_equal(neon_sums(spread, apart), exact_sums(spread, apart))
    assert fits_accumulators(codes, weights) == exact
