# SPDX-License-Identifier: Apache-2.0
"""What is known of the values of one tensor, whichever inputs the graph is given.

Values are those that the graph computes in float32 from finite inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.mismatch import check_channels
from anybit.onnx.analysis.units import EXACT, LOWEST_EXPONENT, exponent_of
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import IntegerGrid

MOST_CHANNELS = 2**14
"""Tensors of more channels are described as a whole."""

_MOST_IN_KEY = 64


@dataclass(frozen=True, eq=False)
class Codes:
    """Integers that the values stand for: value = (code - zeropt) * scale, in float32.

    Each array is 0-d, or 1-D with an entry per channel of the carrier.

    Attributes:
        scale, zeropt: float32, as `IntegerGrid.decode` takes them.
        lowest, highest: int64: the codes that can occur are among lowest, lowest + step, ...,
            highest.
        step: 1, or more where codes between cannot occur: 2 for the signs -1 and 1.
        members: The codes that can occur in any channel, where these are few and no such range.
        allowed: The codes of the type, be they there or not; None if there is no type.
    """

    scale: Array
    zeropt: Array
    lowest: Array
    highest: Array
    step: int = 1
    members: frozenset[int] | None = None
    allowed: range | frozenset[int] | None = None

    @property
    def hull(self) -> range:
        """A range that has all codes of all channels."""
        return range(int(self.lowest.min()), int(self.highest.max()) + 1, self.step)

    @property
    def hull_members(self) -> frozenset[int]:
        """All codes that can occur in any channel, or more."""
        return frozenset(self.hull) if self.members is None else self.members

    @property
    def integral(self) -> bool:
        """Whether code - zeropt is an integer."""
        return bool(np.all(self.zeropt == np.rint(self.zeropt)))

    @property
    def centered(self) -> tuple[Array, Array]:
        """The lowest and the highest code - zeropt per channel, in int64."""
        zeropt = self.zeropt.astype(np.int64)
        return self.lowest - zeropt, self.highest - zeropt

    @property
    def bits(self) -> int:
        """How many bits tell the codes of the type apart."""
        return max(1, (len(self.allowed or self.hull) - 1).bit_length())

    def arranged(self, arrange: Callable[[Array], Array]) -> "Codes":
        """The same with each array of one entry per channel in another order."""
        arrays = (self.scale, self.zeropt, self.lowest, self.highest)
        scale, zeropt, lowest, highest = (
            each if each.ndim == 0 else arrange(each) for each in arrays
        )
        return replace(self, scale=scale, zeropt=zeropt, lowest=lowest, highest=highest)

    def uniform(self, axis: int | None) -> tuple[int | None, "Codes"]:
        """The same with all arrays 0-d, or all with an entry per channel of the axis."""
        arrays = (self.scale, self.zeropt, self.lowest, self.highest)
        axis, (scale, zeropt, lowest, highest) = channelwise(axis, *arrays)
        return axis, replace(self, scale=scale, zeropt=zeropt, lowest=lowest, highest=highest)

    def of_channel(self, channel: int) -> range | frozenset[int]:
        """The codes that can occur in a channel."""
        lowest, highest = (
            int(each if each.ndim == 0 else each[channel]) for each in (self.lowest, self.highest)
        )
        if self.members is not None:
            return frozenset(code for code in self.members if lowest <= code <= highest)
        return range(lowest, highest + 1, self.step)


@dataclass(frozen=True, eq=False)
class Carrier:
    """What is known of a tensor of floats, or of integers.

    Attributes:
        lowest, highest: float64, 0-d or one per channel: no value lies outside. NaN aside.
        axis: The axis of the channels, counted from the end; None where all arrays are 0-d.
        exponent: All finite values are multiples of 2 to this power; None if nothing is known.
        nan: Whether a value may be NaN. Infinite values show in `lowest` and `highest`.
        codes: The integers that the values stand for, if they are such.
        integers: Of a constant its codes, an integer array of the tensor's own shape.
        sources: The quantized tensors or sums of products of which each element is a function, of
            the elements at its own place and of its channel; empty for these themselves, where they
            have codes, and where nothing is known. A sum that has none is its own source.
    """

    lowest: Array
    highest: Array
    axis: int | None = None
    exponent: int | None = None
    nan: bool = False
    codes: Codes | None = None
    integers: Array | None = None
    sources: tuple[ir.Value, ...] = ()

    @property
    def infinite(self) -> bool:
        """Whether a value may be infinite."""
        return not (np.isfinite(self.lowest).all() and np.isfinite(self.highest).all())

    @property
    def bounded(self) -> bool:
        """Whether every value is a number: neither NaN nor infinite."""
        return not self.nan and not self.infinite

    @property
    def reach(self) -> float:
        """The largest magnitude."""
        return float(np.maximum(np.abs(self.lowest), np.abs(self.highest)).max())

    @cached_property
    def grid(self) -> IntegerGrid | None:
        """The grid of the codes, with parameters that broadcast to the tensor."""
        if self.codes is None:
            return None
        scale, zeropt = (self.broadcast(each) for each in (self.codes.scale, self.codes.zeropt))
        return IntegerGrid(scale, zeropt, self.codes.hull)

    @property
    def key(self) -> tuple[object, ...] | None:
        """What carriers that say the same have in common; None if it is long."""
        if self.lowest.size > _MOST_IN_KEY or self.integers is not None:
            return None
        ends = self.lowest.tobytes(), self.highest.tobytes()
        known = (*ends, self.axis, self.exponent, self.nan)
        codes = self.codes
        if codes is None:
            return known
        arrays = (codes.scale, codes.zeropt, codes.lowest, codes.highest)
        return *known, *(each.tobytes() for each in arrays), codes.step, codes.members

    @property
    def count(self) -> int:
        """How many numbers describe it."""
        return self.lowest.size if self.codes is None else 6 * self.lowest.size

    def broadcast(self, array: Array) -> Array:
        """An array with an entry per channel in the shape that broadcasts to the tensor."""
        if array.ndim == 0 or self.axis is None:
            return array
        return array.reshape(-1, *[1] * (-self.axis - 1))

    def whole(self) -> "Carrier":
        """The same without channels: codes are lost where their scales differ."""
        if self.axis is None:
            return self
        return replace(
            self,
            lowest=np.asarray(self.lowest.min()),
            highest=np.asarray(self.highest.max()),
            axis=None,
            codes=None if self.codes is None else _merged(self.codes),
        )

    def values(self, most: int) -> tuple[Array, Array] | None:
        """All values of all codes: float32 of shape (codes, channels), and which can occur.

        None without codes, or if they are more than `most`.
        """
        if self.codes is None or self.grid is None:
            return None
        codes = self.codes
        hull = sorted(codes.members) if codes.members is not None else codes.hull
        if len(hull) * self.lowest.size > most:
            return None
        each = np.asarray(hull, np.int64)[:, None]
        flat = IntegerGrid(codes.scale.reshape(1, -1), codes.zeropt.reshape(1, -1), codes.hull)
        occur = (each >= codes.lowest.reshape(1, -1)) & (each <= codes.highest.reshape(1, -1))
        values = flat.decode(each)
        shape = np.broadcast_shapes(values.shape, occur.shape)
        return np.broadcast_to(values, shape), np.broadcast_to(occur, shape)


def _merged(codes: Codes) -> Codes | None:
    """The codes of all channels together."""
    same = [np.all(each == each.flat[0]) for each in (codes.scale, codes.zeropt)]
    if not all(same):
        return None
    offsets = codes.lowest - codes.lowest.min()
    return replace(
        codes,
        scale=np.asarray(codes.scale.flat[0]),
        zeropt=np.asarray(codes.zeropt.flat[0]),
        lowest=np.asarray(codes.lowest.min()),
        highest=np.asarray(codes.highest.max()),
        step=codes.step if not np.any(offsets % codes.step) else 1,
    )


def channelwise(axis: int | None, *arrays: Array) -> tuple[int | None, list[Array]]:
    """Arrays that are 0-d or have an entry per channel, all in one way: 0-d, or one per channel.

    Raises:
        Mismatch: They have different numbers of channels.
    """
    size = check_channels(*arrays)
    if size == 1 or axis is None:
        return None, [each.reshape(()) for each in arrays]
    return axis, [np.broadcast_to(each, (size,)) if each.size == 1 else each for each in arrays]


def of_interval(
    lowest: Array | float,
    highest: Array | float,
    axis: int | None = None,
    *,
    exponent: int | None = None,
    nan: bool = False,
    sources: Sequence[ir.Value] = (),
) -> Carrier:
    """A carrier of numbers between two bounds."""
    axis, (low, high) = channelwise(
        axis, np.asarray(lowest, np.float64), np.asarray(highest, np.float64)
    )
    return Carrier(low, high, axis, exponent, nan, sources=tuple(sources))


def of_codes(codes: Codes, axis: int | None = None, *, nan: bool = False) -> Carrier | None:
    """A carrier of the values of codes; None where float32 does not hold them exactly."""
    axis, codes = codes.uniform(axis)
    if not np.isfinite(codes.scale).all() or not np.isfinite(codes.zeropt).all():
        return None
    most = max(np.abs(codes.lowest).max(initial=0), np.abs(codes.highest).max(initial=0))
    if codes.lowest.size == 0 or most + np.abs(codes.zeropt).max() > EXACT:
        return None
    grid = IntegerGrid(codes.scale, codes.zeropt, codes.hull)
    ends = np.stack([grid.decode(codes.lowest), grid.decode(codes.highest)]).astype(np.float64)
    exponent = None
    if codes.integral and np.isfinite(ends).all():
        exponent = _exponent(codes)
    return Carrier(ends.min(axis=0), ends.max(axis=0), axis, exponent, nan, codes)


def _exponent(codes: Codes) -> int | None:
    """Of which power of two all values are multiples.

    They are rounded products of an integer and a scale: multiples of what the scale is a multiple
    of as long as the product has no more bits than float32, and of the last bit of the smallest
    product otherwise.
    """
    scale = codes.scale.astype(np.float64)
    own = exponent_of(scale)
    low, high = codes.centered
    reach = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
    if own >= LOWEST_EXPONENT and np.all(np.abs(scale) * reach <= EXACT * 2.0**own):
        return own
    smallest = np.abs(scale[scale != 0]).min()
    return max(LOWEST_EXPONENT, int(np.frexp(smallest)[1]) - 24)


def on_units(carrier: Carrier) -> Carrier:
    """The same with the numbers of its units for codes, if it has none and float32 holds all."""
    exponent = carrier.exponent
    if carrier.codes is not None or exponent is None or not carrier.bounded:
        return carrier
    unit = 2.0**exponent
    if not LOWEST_EXPONENT <= exponent <= 127 or carrier.reach > EXACT * unit:
        return carrier
    lowest, highest = np.ceil(carrier.lowest / unit), np.floor(carrier.highest / unit)
    if np.any(lowest > highest):
        return carrier
    scale, zeropt = np.asarray(unit, np.float32), np.zeros((), np.float32)
    codes = Codes(scale, zeropt, lowest.astype(np.int64), highest.astype(np.int64))
    return replace(carrier, codes=codes.uniform(carrier.axis)[1])
