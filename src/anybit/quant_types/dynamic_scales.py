# SPDX-License-Identifier: Apache-2.0
"""Bounds of scales that are computed from a tensor at run time."""

SMALLEST_DYNAMIC_SCALE = 2.0**-124
"""Subnormal numbers are less than half a step, so it does not matter if they are flushed to 0."""


def find_largest_scale(steps: int, largest: float, digits: int) -> float:
    """Return the largest scale whose multiples up to a number of steps are finite.

    Args:
        steps: The number of steps.
        largest: The largest number of the type of scales.
        digits: The binary digits of its significand: 24 in float32, 53 in float64.
    """
    quotient = int(largest) // steps
    excess = quotient.bit_length() - digits
    return float(quotient >> excess << excess)
