# SPDX-License-Identifier: Apache-2.0
"""Grids of quantized values."""

from dataclasses import dataclass

import numpy as np

from anybit.arrays import Array


class OffGridError(ValueError):
    """A value that is not on a grid; the message says what it is instead."""


@dataclass(frozen=True)
class TensorGrid:
    """Multiples of one scale: scale * code for the codes lowest, lowest + step, ...

    Codes have no zero-point: code 0 is the value 0. The index of a code is its position.

    Attributes:
        scale: Factor from codes to values, rounded to float32 by `decode`.
        lowest: Smallest code.
        step: Distance of two codes.
        levels: Number of codes.
    """

    scale: float
    lowest: int
    step: int
    levels: int

    @property
    def highest(self) -> int:
        """Largest code."""
        return self.lowest + self.step * (self.levels - 1)

    @property
    def codes(self) -> Array:
        """All codes, ascending, int64."""
        return self.lowest + self.step * np.arange(self.levels)

    @property
    def values(self) -> Array:
        """The values of all codes, float32."""
        return self.decode(self.codes)

    def decode(self, codes: Array) -> Array:
        """Return the values of codes as the float graph computes them: one float32 product."""
        with np.errstate(over="ignore"):
            return np.asarray(codes.astype(np.float32) * np.float32(self.scale))

    def round(self, values: Array) -> Array:
        """Return the nearest values on the grid; NaN stays."""
        with np.errstate(all="ignore"):
            index = np.rint((values.astype(np.float64) / self.scale - self.lowest) / self.step)
        return self.decode(self.lowest + self.step * np.clip(index, 0, self.levels - 1))

    def index(self, values: Array) -> Array:
        """Return the index of the code of each value, int64.

        Raises:
            OffGridError: A value that is not on the grid.
        """
        with np.errstate(all="ignore"):
            codes = np.rint(values.astype(np.float64) / self.scale)
        if not np.array_equal(self.decode(codes), values):
            raise OffGridError("values that are NaN or infinite, or off their grid")
        index = codes - self.lowest
        if self.step != 1:
            with np.errstate(invalid="ignore"):
                index, rest = np.divmod(index, self.step)
            if rest.any():
                raise OffGridError("values that are not among the codes")
        if index.min(initial=0) < 0 or index.max(initial=0) >= self.levels:
            raise OffGridError("values that are not among the codes")
        return np.asarray(index, np.int64)
