# SPDX-License-Identifier: Apache-2.0
"""Epilogues equal the float function on all accumulators and are the cheapest to do so."""

import numpy as np
import pytest

from anybit.compiler.partition.element_functions import ElementFunction
from anybit.compiler.partition.expressions import Accumulators, IntegerRange
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import apply_epilogue
from anybit.compiler.reason import Unsupported
from anybit.compiler.requantize import epilogue
from anybit.compiler.requantize.epilogue import requantize_exactly
from anybit.compiler.requantize.thresholds import find_highest_index, find_thresholds

STEP = np.float32(0.25)


def affine(gains, offsets, lowest, levels, *, monotone=True):
    """Round half to even and saturate, after a gain and an offset per channel."""

    def function(y):
        codes = np.rint((y * np.float32(gains) + np.float32(offsets)) / STEP)
        return (np.clip(codes, lowest, lowest + levels - 1) * STEP).astype(np.float32)

    return ElementFunction().then(function, monotone=monotone, uniform=False)


def index_from(lowest):
    return lambda values: np.rint(values / STEP).astype(np.int64) - lowest


def sums(low, high, scale=0.125, slack=0.0):
    low = np.asarray(low)
    size = low.shape
    return Accumulators(
        np.full(size, scale, np.float32),
        IntegerRange(low, np.broadcast_to(high, size)),
        np.full(size, slack),
    )


def differing(epilogue, function, index, levels, of):
    offsets = np.minimum(np.arange(of.reach.longest)[:, None], of.reach.highest - of.reach.lowest)
    points = of.reach.lowest + offsets
    return int(
        (apply_epilogue(epilogue, points, levels) != index(function(of.values(points)))).sum()
    )


@pytest.mark.parametrize("monotone", [True, False])
@pytest.mark.parametrize("levels", [2, 3, 4, 8, 16, 64, 256])
def test_epilogue_equals_function_everywhere(levels, monotone):
    random = np.random.default_rng(levels)
    gains, offsets = random.standard_normal((2, 24))
    gains[:2] = 0, -2.0
    lowest = -(levels // 2)
    function = affine(gains, offsets, lowest, levels, monotone=monotone)
    of = sums(np.arange(-24, 0) * 30, np.arange(24) * 40)
    result = requantize_exactly(function, index_from(lowest), levels, of)
    assert differing(result.epilogue, function, index_from(lowest), levels, of) == 0
    assert isinstance(result.epilogue, p.Thresholds if levels <= 4 else p.Affine)


def test_epilogue_rounds_ties_to_even_code():
    # acc / 2 quantization steps: every odd accumulator is a tie.
    function = affine([1.0], [0.0], -8, 16)
    of = sums([-16], [16])
    result = requantize_exactly(function, index_from(-8), 16, of)
    assert differing(result.epilogue, function, index_from(-8), 16, of) == 0
    # One line does that because it rounds ties as the function does.
    assert (result.epilogue.gains, result.epilogue.offsets) == (np.float32([0.5]), np.float32([8]))


@pytest.mark.parametrize("lowest", [-127, -128])
def test_epilogue_rounds_ties_to_even_code_with_any_lowest(lowest):
    # Gains with short mantissas, and enough ties that no other line passes through the steps.
    function = affine([1.0, -1.0, 0.5], [0.0, 0.25, 0.0], lowest, 255)
    index, of = index_from(lowest), sums([-600] * 3, [600])
    result = requantize_exactly(function, index, 255, of, -lowest)
    assert differing(result.epilogue, function, index, 255, of) == 0
    assert (result.epilogue.gains == np.float32([0.5, -0.5, 0.25])).all()
    # Rounded after the shift, odd codes would be even indices.
    assert isinstance(requantize_exactly(function, index, 255, of).epilogue, p.Affine) == (
        lowest == -128
    )


def test_epilogue_supports_constant_and_decreasing_channels():
    gains = np.array([0, 1, -1, 1e-30, 0])
    offsets = np.array([100, 0, 0, -100, 0.1])
    function = affine(gains, offsets, -1, 3)
    of = sums([-50] * 5, [50])
    result = requantize_exactly(function, index_from(-1), 3, of)
    assert result.epilogue.directions.tolist() == [1, 1, -1, 1, 1]
    thresholds = result.epilogue.thresholds.reshape(5, 2)
    assert thresholds[0].tolist() == [-50, -50]
    assert thresholds[3].tolist() == [51, 51]
    assert thresholds[4].tolist() == [-50, 51]
    assert result.steps == 4


def test_epilogue_moves_unreached_steps_out_of_range():
    function = affine([0.001], [0.0], 0, 4)
    result = requantize_exactly(function, index_from(0), 4, sums([-5], [5]))
    assert result.epilogue.thresholds.tolist() == [6, 6, 6]
    assert result.steps == 0


def test_epilogue_uses_table_for_non_monotonic_function():
    def function(y):
        return (np.clip(np.rint(np.abs(y) / STEP), 0, 7) * STEP).astype(np.float32)

    bent = ElementFunction().then(function, monotone=False, uniform=True)
    of = sums([-40, -3], [40, 90])
    result = requantize_exactly(bent, index_from(0), 8, of)
    assert isinstance(result.epilogue, p.Table)
    assert differing(result.epilogue, bent, index_from(0), 8, of) == 0


def test_epilogue_refuses_too_long_table():
    bent = ElementFunction().then(np.abs, monotone=False, uniform=True)
    with pytest.raises(
        Unsupported, match="not monotonic, and a lookup table would have 33554433 entries"
    ):
        requantize_exactly(bent, index_from(0), 8, sums([-(2**24)], [2**24]))


def counted(function, sizes):
    def part(y):
        sizes.append(y.size)
        return function(y)

    return ElementFunction().then(part, monotone=False, uniform=True)


def wave(y):
    return (np.rint((np.cos(y) + 1) * 3.5) * STEP).astype(np.float32)


def test_epilogue_refuses_large_table_early():
    sizes = []
    with pytest.raises(Unsupported, match="a lookup table would have 8388609 entries"):
        requantize_exactly(counted(wave, sizes), index_from(0), 8, sums([-(2**22)], [2**22], 1e-6))
    assert sum(sizes) <= 2**16


def test_evaluate_table_works_in_blocks():
    sizes = []
    of = sums([-(2**20)] * 2, [2**20 - 1], 1e-6)
    result = requantize_exactly(counted(wave, sizes), index_from(0), 8, of)
    assert isinstance(result.epilogue, p.Table)
    assert sum(sizes) == 2**22
    assert max(sizes) <= 2**18


@pytest.mark.parametrize("slack", [0.0004, 0.004, 0.04])
def test_epilogue_lists_risks_of_table(slack):
    of = sums([-700, -20, 30], [900, 4000, 31], 0.01, slack)
    result = requantize_exactly(counted(wave, []), index_from(0), 8, of)
    expected = []
    for channel in range(3):
        points = np.arange(of.reach.lowest[channel], of.reach.highest[channel] + 1)
        exact = points.astype(np.float32) * np.float32(0.01)
        ends = [(exact + side * slack).astype(np.float32) for side in (-1, 1)]
        ends = np.nextafter(ends, np.float32([[-np.inf], [np.inf]]))
        moved = (wave(ends) != wave(exact)).any(axis=0)
        expected += [(channel, int(point)) for point in points[moved]]
    assert expected
    assert list(result.risks) == expected


def test_epilogue_detects_false_monotonicity():
    bent = ElementFunction().then(lambda y: np.abs(y) // STEP * STEP, monotone=True, uniform=True)
    with pytest.raises(Unsupported, match="its result is not monotonic"):
        requantize_exactly(bent, index_from(0), 256, sums([-400], [500]))


def test_epilogue_bisects_long_ranges():
    function = affine([1e-4, -1e-4], [0.0, 0.3], -128, 256)
    of = sums([-(2**27)] * 2, [2**27])
    result = requantize_exactly(function, index_from(-128), 256, of)
    epilogue = result.epilogue
    near = np.random.default_rng(0).integers(-(2**27), 2**27, (2000, 2))
    expected = index_from(-128)(function(of.values(near)))
    np.testing.assert_array_equal(apply_epilogue(epilogue, near, 256), expected)


def test_epilogue_lists_risks():
    # The edge between codes 0 and 1 is at y = 0.125, between the accumulators 1 and 2.
    function = affine([1.0], [0.0], 0, 2)
    index = index_from(0)
    assert (
        requantize_exactly(function, index, 2, sums([-9], [9], scale=0.1, slack=1e-3)).risks == ()
    )
    assert requantize_exactly(function, index, 2, sums([-9], [9], scale=0.1, slack=0.03)).risks == (
        (0, 1),
    )
    result = requantize_exactly(function, index, 2, sums([-9], [9], scale=0.1, slack=0.25)).risks
    assert result == ((0, -1), (0, 0), (0, 1), (0, 2), (0, 3))


def test_epilogue_lists_risk_at_step_beyond_range():
    function, index = affine([1.0], [0.0], 0, 2), index_from(0)
    # The edge is between 1 and 2.
    assert requantize_exactly(function, index, 2, sums([-9], [1], scale=0.1, slack=0.03)).risks == (
        (0, 1),
    )
    assert requantize_exactly(function, index, 2, sums([2], [9], scale=0.1, slack=0.1)).risks == (
        (0, 2),
    )


def test_epilogue_limits_tested_risks(monkeypatch):
    monkeypatch.setattr(epilogue, "_MOST_TESTED", 8)
    of = sums([-9], [9], scale=0.1, slack=0.25)
    result = requantize_exactly(affine([1.0], [0.0], 0, 2), index_from(0), 2, of)
    assert result.risks
    assert result.more_risks


@pytest.mark.parametrize("monotone", [True, False])
def test_epilogue_limits_listed_risks(monkeypatch, monotone):
    """List few of the risks of sums with errors of hundreds of units."""
    monkeypatch.setattr(epilogue, "MOST_RISKS", 8)
    of = sums([-(2**12)], [2**12], scale=1e-3, slack=0.5)
    result = requantize_exactly(affine([1.0], [0.0], 0, 2, monotone=monotone), index_from(0), 2, of)
    assert 8 <= len(result.risks) < 16
    assert result.more_risks


def test_epilogue_has_no_risks_for_exact_sums():
    assert (
        requantize_exactly(affine([1.0], [0.0], 0, 2), index_from(0), 2, sums([-9], [9])).risks
        == ()
    )


def test_thresholds_equal_quantizer_for_all_floats():
    function = affine([2.0], [-1.0], -1, 3)
    result = find_thresholds(function, index_from(-1), 3, 1)
    # The tie below -1/8 goes to 0, that above 1/8 too.
    low, high = result["thresholds"]
    assert result["directions"].tolist() == [1]
    assert low == np.float32(0.4375)
    assert high == np.nextafter(np.float32(0.5625), np.float32(1))
    assert result["nan"] == -1


def test_thresholds_support_decreasing_functions():
    function = affine([-1.0], [0.0], 0, 3)
    result = find_thresholds(function, index_from(0), 3, 1)
    assert result["directions"].tolist() == [-1]
    x = np.array([1, -0.125, -0.1250001, -0.3749999, -0.375, -9], np.float32)
    count = (x[:, None] >= result["thresholds"]).sum(axis=1)
    np.testing.assert_array_equal(2 - count, index_from(0)(function(x[:, None]))[:, 0])


def test_thresholds_give_index_of_nan():
    sign = ElementFunction().then(
        lambda y: np.where(y >= 0, STEP, -STEP).astype(np.float32), monotone=True, uniform=True
    )
    result = find_thresholds(sign, lambda values: (values > 0).astype(np.int64), 2, 1)
    assert result["thresholds"].tolist() == [0.0]
    assert result["nan"] == 0


def test_thresholds_detect_false_monotonicity():
    """Both where it bends far from every step, and where it does beside one."""

    def bent(y):
        there = (y > 3) & (y < 3.5)
        return np.where(there, 0, np.clip(np.rint(y / STEP), 0, 3) * STEP).astype(np.float32)

    def hole(y):
        up = np.where(y >= STEP, STEP, 0)
        return np.where(y == np.nextafter(STEP, np.float32(1)), 0, up).astype(np.float32)

    for function, levels in ((bent, 4), (hole, 2)):
        promised = ElementFunction().then(function, monotone=True, uniform=True)
        with pytest.raises(Unsupported, match="its result is not monotonic"):
            find_thresholds(promised, index_from(0), levels, 1)


def test_highest_index_includes_nan():
    def sign(y):
        return np.where(np.isnan(y), 3, np.where(y < 0, 0, 1)).astype(np.float32) * STEP

    promised = ElementFunction().then(sign, monotone=True, uniform=True)
    assert find_highest_index(promised, index_from(0), 1) == 3
