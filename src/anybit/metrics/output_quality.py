# SPDX-License-Identifier: Apache-2.0
"""Quality figures of one output, or of one part of it: SQNR, correlation and agreement.

Sums are accumulated in float64, in the order of the samples. For outputs x of the float model and y
of the quantized model, over all elements except NaN and infinities that both have at one index:

    SQNR = 10 log10(sum x^2 / sum (x - y)^2)
    r    = sum (x - mean x)(y - mean y) / sqrt(sum (x - mean x)^2 sum (y - mean y)^2)

Means and centered sums of samples are merged by the formulas of Chan, Golub and LeVeque (1983,
https://doi.org/10.1080/00031305.1983.10483115), which keeps r accurate for large means.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from anybit.metrics.arrays import is_float
from anybit.metrics.confidence import NoiseSpread
from anybit.metrics.output_parts import OutputPart
from anybit.metrics.sqnr import compute_sqnr, noise_to_sqnr
from anybit.onnx.graph.constants import Array

_TOLERANCE = 1e-3
"""The tolerance of row sums of 1; those of a Softmax in float16 are accurate to about 2^-11."""


@dataclass(frozen=True)
class OutputQuality:
    """Quality figures of one output, or of one part of it.

    Attributes:
        name: The output, with the part as a NumPy index: "scores", "output0[:, 4:84]".
        kind: "float"; "distribution" (over classes); "logits" (floats that may be the scores of a
            classifier); or "exact" (integers, booleans).
        sqnr: Signal-to-quantization-noise ratio in dB; infinite without noise, None for "exact".
        correlation: Pearson's r; None for "exact", for constant outputs, and if NaN, infinities or
            shapes differ.
        agreement: Distributions and logits: the share of rows with the same arg max. Integers and
            booleans: the share of equal elements. None for other floats.
    """

    name: str
    kind: str
    sqnr: float | None
    correlation: float | None
    agreement: float | None


@dataclass
class _Moments:
    """Centered sums of two arrays, for their correlation."""

    count: int = 0
    mean_x: float = 0.0
    mean_y: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    range_x: tuple[float, float] = (math.inf, -math.inf)
    range_y: tuple[float, float] = (math.inf, -math.inf)
    defined: bool = True

    @classmethod
    def compute(cls, x: Array, y: Array, same: Array) -> "_Moments":
        """Return the moments of two float64 arrays; `same` marks equal elements, including NaN."""
        finite = np.isfinite(x) & np.isfinite(y)
        if not (finite | same).all():
            return cls(defined=False)
        x, y = x[finite], y[finite]
        if not x.size:
            return cls()
        with np.errstate(all="ignore"):
            mean_x, mean_y = float(x.mean()), float(y.mean())
            ranges = (float(x.min()), float(x.max())), (float(y.min()), float(y.max()))
            x, y = x - mean_x, y - mean_y
            sums = float((x * x).sum()), float((y * y).sum()), float((x * y).sum())
        return cls(x.size, mean_x, mean_y, *sums, *ranges)

    def merge(self, other: "_Moments") -> None:
        """Add the elements of another sample."""
        self.defined &= other.defined
        if not other.count:
            return
        count = self.count + other.count
        share, weight = other.count / count, self.count / count * other.count
        dx, dy = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        self.xx += other.xx + dx * dx * weight
        self.yy += other.yy + dy * dy * weight
        self.xy += other.xy + dx * dy * weight
        self.mean_x, self.mean_y = self.mean_x + dx * share, self.mean_y + dy * share
        self.range_x = _find_hull(self.range_x, other.range_x)
        self.range_y = _find_hull(self.range_y, other.range_y)
        self.count = count

    @property
    def correlation(self) -> float | None:
        """Pearson's r; None if it is undefined."""
        varies = self.range_x[0] < self.range_x[1] and self.range_y[0] < self.range_y[1]
        if not (self.defined and varies and self.xx > 0 and self.yy > 0):
            return None
        r = self.xy / math.sqrt(self.xx) / math.sqrt(self.yy)
        return min(max(r, -1.0), 1.0) if math.isfinite(r) else None


def _find_hull(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return min(one[0], other[0]), max(one[1], other[1])


@dataclass
class OutputSums:
    """Sums over samples of one output, or of one part of it.

    Attributes:
        is_float: Whether the elements are floats.
        kind: The kind that the graph shows: "distribution", "logits" or "".
        signal: The sum of squares of the float model's output.
        noise: The sum of squared differences.
        elements: The number of floats.
        agreeing: The number of rows that agree.
        rows: The number of rows with classes, or of elements of integers.
        sums_to_one: Whether all rows are non-negative and sum to 1; None without rows.
        moments: The sums of the correlation.
        spread: Noise and signal per sample.
    """

    is_float: bool
    kind: str = ""
    signal: float = 0.0
    noise: float = 0.0
    elements: int = 0
    agreeing: int = 0
    rows: int = 0
    sums_to_one: bool | None = None
    moments: _Moments = field(default_factory=_Moments)
    spread: NoiseSpread = field(default_factory=NoiseSpread)

    @classmethod
    def compare(cls, a: Array, b: Array | None, part: OutputPart) -> "OutputSums":
        """Compare the outputs of two models on a sample.

        Args:
            a: The output of the float model, or the part of it.
            b: The same of the quantized model. None if the shapes differ: then all of `a` is noise,
                and nothing agrees.
            part: The part of the output.
        """
        sums = cls(is_float(a), part.kind)
        if not sums.is_float:
            sums.rows = max(a.size, int(b is None))
            sums.agreeing = 0 if b is None else int(np.count_nonzero(a == b))
            return sums
        sums._add_rows(a, b, part)
        sums._add_floats(a, np.where(np.isfinite(a), 0, a) if b is None else b)
        sums.moments.defined &= b is not None
        return sums

    def _add_rows(self, a: Array, b: Array | None, part: OutputPart) -> None:
        """Compare the arg max of each row, if rows may have classes."""
        axis = -1 if part.class_axis is None else part.class_axis
        if not -a.ndim <= axis < a.ndim or a.shape[axis] < 2 or not a.size:
            return
        if self.kind != "distribution":
            self.sums_to_one = _has_unit_sums(a, axis)
        if not self.kind and not self.sums_to_one:
            return
        self.rows = a.size // a.shape[axis]
        if b is not None:
            self.agreeing = int(np.count_nonzero(a.argmax(axis=axis) == b.argmax(axis=axis)))

    def _add_floats(self, a: Array, b: Array) -> None:
        """Accumulate signal and noise.

        NaN and infinities are not noise if both outputs have them, and infinite noise otherwise.
        """
        x, y = a.astype(np.float64), b.astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        finite = np.isfinite(x)
        self.elements += x.size
        with np.errstate(all="ignore"):
            self.signal += float(np.square(x[finite]).sum())
            noise = float(np.square(x[~same] - y[~same]).sum())
        self.noise += noise if np.isfinite(noise) else np.inf
        self.moments = _Moments.compute(x, y, same)

    def merge(self, other: "OutputSums") -> None:
        """Add another sample."""
        self.spread.add(other.noise, other.signal)
        self.signal += other.signal
        self.noise += other.noise
        self.elements += other.elements
        self.agreeing += other.agreeing
        self.rows += other.rows
        self.moments.merge(other.moments)
        if other.sums_to_one is not None:
            self.sums_to_one = other.sums_to_one and self.sums_to_one is not False

    @property
    def has_classes(self) -> bool:
        """True if an agreement is defined: of rows with classes, or of integers."""
        return bool(self.rows) and self.quality_kind != "float"

    @property
    def quality_kind(self) -> str:
        """The `kind` of an `OutputQuality`."""
        if not self.is_float:
            return "exact"
        return "distribution" if self.sums_to_one else self.kind or "float"

    def compute_quality(self, name: str) -> OutputQuality:
        """Return the figures over all samples, under the name of an output."""
        agreement = self.agreeing / self.rows if self.has_classes else None
        if not self.is_float:
            return OutputQuality(name, self.quality_kind, None, None, agreement)
        correlation = self.moments.correlation
        return OutputQuality(name, self.quality_kind, self.sqnr, correlation, agreement)

    @property
    def sqnr(self) -> float:
        """The SQNR in dB; infinite without noise, -infinite without signal."""
        if self.noise and not (np.isfinite([self.noise, self.signal]).all() and self.signal):
            return -np.inf
        return compute_sqnr(self.signal, self.noise)

    @property
    def sqnr_bound(self) -> float | None:
        """An estimated lower bound of the SQNR on unseen data, in dB; None if undefined."""
        noise = self.spread.bound_noise()
        return None if noise is None else noise_to_sqnr(noise)


def _has_unit_sums(a: Array, axis: int) -> bool:
    """Return whether all rows are non-negative and sum to 1."""
    with np.errstate(all="ignore"):
        if not (a >= 0).all():  # also NaN
            return False
        return bool((np.abs(a.sum(axis=axis, dtype=np.float64) - 1) <= _TOLERANCE).all())
