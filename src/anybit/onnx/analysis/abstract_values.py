# SPDX-License-Identifier: Apache-2.0
"""Abstract values: sound descriptions of the values of one tensor for all inputs of a graph.

Values are those that the graph computes in float32 from finite inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.mismatch import check_channels
from anybit.onnx.analysis.units import EXACT, LOWEST_EXPONENT, find_exponent
from anybit.onnx.graph.constants import Array
from anybit.ops.grids import IntegerGrid

MOST_CHANNELS = 2**18
"""Tensors of more channels are described as a whole."""

_MOST_IN_KEY = 64


@dataclass(frozen=True, eq=False)
class CodeRanges:
    """Integer codes of values: value = (code - zeropt) * scale, in float32.

    Each array is 0-d, or 1-D with an entry per channel of the abstract.

    Attributes:
        scale, zeropt: float32, as `IntegerGrid.decode` takes them.
        lowest, highest: int64: the codes that can occur are among lowest, lowest + step, ...,
            highest.
        step: 1, or more if codes in between cannot occur: 2 for the signs -1 and 1.
        members: The codes that can occur in any channel, if they are few and not such a range.
        allowed: All codes of the type; None if there is no type.
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
        """Return a range that contains all codes of all channels."""
        return range(int(self.lowest.min()), int(self.highest.max()) + 1, self.step)

    @property
    def hull_members(self) -> frozenset[int]:
        """Return all codes that can occur in any channel, or a superset."""
        return frozenset(self.hull) if self.members is None else self.members

    @property
    def integral(self) -> bool:
        """Return whether code - zeropt is an integer."""
        return bool(np.all(self.zeropt == np.rint(self.zeropt)))

    @property
    def centered(self) -> tuple[Array, Array]:
        """Return the lowest and the highest code - zeropt per channel, in int64."""
        zeropt = self.zeropt.astype(np.int64)
        return self.lowest - zeropt, self.highest - zeropt

    @property
    def bits(self) -> int:
        """Return the number of bits that distinguish the codes of the type."""
        return max(1, (len(self.allowed or self.hull) - 1).bit_length())

    def rearrange(self, arrange: Callable[[Array], Array]) -> "CodeRanges":
        """Return the codes with each per-channel array rearranged."""
        arrays = (self.scale, self.zeropt, self.lowest, self.highest)
        scale, zeropt, lowest, highest = (
            array if array.ndim == 0 else arrange(array) for array in arrays
        )
        return replace(self, scale=scale, zeropt=zeropt, lowest=lowest, highest=highest)

    def align(self, axis: int | None) -> tuple[int | None, "CodeRanges"]:
        """Return the codes with all arrays 0-d, or all with an entry per channel of the axis."""
        arrays = (self.scale, self.zeropt, self.lowest, self.highest)
        axis, (scale, zeropt, lowest, highest) = align_channels(axis, *arrays)
        return axis, replace(self, scale=scale, zeropt=zeropt, lowest=lowest, highest=highest)

    def get_channel(self, channel: int) -> range | frozenset[int]:
        """Return the codes that can occur in a channel."""
        lowest, highest = (
            int(bound if bound.ndim == 0 else bound[channel])
            for bound in (self.lowest, self.highest)
        )
        if self.members is not None:
            return frozenset(code for code in self.members if lowest <= code <= highest)
        return range(lowest, highest + 1, self.step)


@dataclass(frozen=True, eq=False)
class AbstractValue:
    """The possible values of a tensor of floats or integers.

    Attributes:
        lowest, highest: float64, 0-d or one per channel: bounds of all values except NaN.
        axis: The axis of the channels, counted from the end; None if all arrays are 0-d.
        exponent: All finite values are multiples of 2 to this power; None if unknown.
        nan: Whether a value may be NaN. Infinite values are within `lowest` and `highest`.
        codes: The integer codes of the values, if they have any.
        integers: The codes of a constant, an integer array of the tensor's shape.
        sources: The quantized tensors or sums of products that determine each element, together
            with its channel, by their elements at the same position. Empty for these tensors
            themselves if they have codes, and if unknown. A sum without sources is its own source.
    """

    lowest: Array
    highest: Array
    axis: int | None = None
    exponent: int | None = None
    nan: bool = False
    codes: CodeRanges | None = None
    integers: Array | None = None
    sources: tuple[ir.Value, ...] = ()

    @property
    def infinite(self) -> bool:
        """Return whether a value may be infinite."""
        return not (np.isfinite(self.lowest).all() and np.isfinite(self.highest).all())

    @property
    def bounded(self) -> bool:
        """Return whether every value is finite and not NaN."""
        return not self.nan and not self.infinite

    @property
    def reach(self) -> float:
        """Return the largest magnitude."""
        return float(np.maximum(np.abs(self.lowest), np.abs(self.highest)).max())

    @cached_property
    def grid(self) -> IntegerGrid | None:
        """Return the grid of the codes, with parameters that broadcast to the tensor."""
        if self.codes is None:
            return None
        scale, zeropt = (
            self.broadcast(parameter) for parameter in (self.codes.scale, self.codes.zeropt)
        )
        return IntegerGrid(scale, zeropt, self.codes.hull)

    @property
    def key(self) -> tuple[object, ...] | None:
        """Return a key that equal abstract values share; None if it is long."""
        if self.lowest.size > _MOST_IN_KEY or self.integers is not None:
            return None
        ends = self.lowest.tobytes(), self.highest.tobytes()
        properties = (*ends, self.axis, self.exponent, self.nan)
        codes = self.codes
        if codes is None:
            return properties
        arrays = (codes.scale, codes.zeropt, codes.lowest, codes.highest)
        return *properties, *(array.tobytes() for array in arrays), codes.step, codes.members

    @property
    def count(self) -> int:
        """Return how many numbers describe the value."""
        return self.lowest.size if self.codes is None else 6 * self.lowest.size

    def broadcast(self, array: Array) -> Array:
        """Return an array with an entry per channel in a shape that broadcasts to the tensor."""
        if array.ndim == 0 or self.axis is None:
            return array
        return array.reshape(-1, *[1] * (-self.axis - 1))

    def merge_channels(self) -> "AbstractValue":
        """Return the value without channels: codes are lost if their scales differ."""
        if self.axis is None:
            return self
        return replace(
            self,
            lowest=np.asarray(self.lowest.min()),
            highest=np.asarray(self.highest.max()),
            axis=None,
            codes=None if self.codes is None else _merge_channels(self.codes),
        )

    def values(self, most: int) -> tuple[Array, Array] | None:
        """Return all values of all codes as float32 (codes, channels), and which can occur.

        None without codes, or if there are more than `most`.
        """
        if self.codes is None or self.grid is None:
            return None
        codes = self.codes
        hull = sorted(codes.members) if codes.members is not None else codes.hull
        if len(hull) * self.lowest.size > most:
            return None
        column = np.asarray(hull, np.int64)[:, None]
        flat = IntegerGrid(codes.scale.reshape(1, -1), codes.zeropt.reshape(1, -1), codes.hull)
        occur = (column >= codes.lowest.reshape(1, -1)) & (column <= codes.highest.reshape(1, -1))
        values = flat.decode(column)
        shape = np.broadcast_shapes(values.shape, occur.shape)
        return np.broadcast_to(values, shape), np.broadcast_to(occur, shape)


def _merge_channels(codes: CodeRanges) -> CodeRanges | None:
    """Return the codes of all channels together."""
    same = [np.all(parameter == parameter.flat[0]) for parameter in (codes.scale, codes.zeropt)]
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


def align_channels(axis: int | None, *arrays: Array) -> tuple[int | None, list[Array]]:
    """Return arrays in one form: all 0-d, or all with an entry per channel.

    Raises:
        Mismatch: The arrays have different numbers of channels.
    """
    size = check_channels(*arrays)
    if size == 1 or axis is None:
        return None, [array.reshape(()) for array in arrays]
    return axis, [np.broadcast_to(array, (size,)) if array.size == 1 else array for array in arrays]


def from_interval(
    lowest: Array | float,
    highest: Array | float,
    axis: int | None = None,
    *,
    exponent: int | None = None,
    nan: bool = False,
    sources: Sequence[ir.Value] = (),
) -> AbstractValue:
    """Return the abstract value of numbers between two bounds."""
    axis, (low, high) = align_channels(
        axis, np.asarray(lowest, np.float64), np.asarray(highest, np.float64)
    )
    return AbstractValue(low, high, axis, exponent, nan, sources=tuple(sources))


def from_codes(
    codes: CodeRanges, axis: int | None = None, *, nan: bool = False
) -> AbstractValue | None:
    """Return the abstract value of codes; None if float32 does not hold their values exactly."""
    axis, codes = codes.align(axis)
    if not np.isfinite(codes.scale).all() or not np.isfinite(codes.zeropt).all():
        return None
    most = max(np.abs(codes.lowest).max(initial=0), np.abs(codes.highest).max(initial=0))
    if codes.lowest.size == 0 or most + np.abs(codes.zeropt).max() > EXACT:
        return None
    grid = IntegerGrid(codes.scale, codes.zeropt, codes.hull)
    ends = np.stack([grid.decode(codes.lowest), grid.decode(codes.highest)]).astype(np.float64)
    exponent = None
    if codes.integral and np.isfinite(ends).all():
        exponent = _find_exponent(codes)
    return AbstractValue(ends.min(axis=0), ends.max(axis=0), axis, exponent, nan, codes)


def _find_exponent(codes: CodeRanges) -> int | None:
    """Return the exponent of a power of two that all values are multiples of.

    The values are rounded products of an integer and a scale. If the products fit float32, they
    are multiples of the same power of two as the scale. Otherwise they are multiples of the last
    bit of the smallest product.
    """
    scale = codes.scale.astype(np.float64)
    own = find_exponent(scale)
    low, high = codes.centered
    reach = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
    if own >= LOWEST_EXPONENT and np.all(np.abs(scale) * reach <= EXACT * 2.0**own):
        return own
    smallest = np.abs(scale[scale != 0]).min()
    return max(LOWEST_EXPONENT, int(np.frexp(smallest)[1]) - 24)


def encode_units(abstract: AbstractValue) -> AbstractValue:
    """Return the value with its multiples of a power of two as codes, if float32 holds them all."""
    exponent = abstract.exponent
    if abstract.codes is not None or exponent is None or not abstract.bounded:
        return abstract
    unit = 2.0**exponent
    if not LOWEST_EXPONENT <= exponent <= 127 or abstract.reach > EXACT * unit:
        return abstract
    lowest, highest = np.ceil(abstract.lowest / unit), np.floor(abstract.highest / unit)
    if np.any(lowest > highest):
        return abstract
    scale, zeropt = np.asarray(unit, np.float32), np.zeros((), np.float32)
    codes = CodeRanges(scale, zeropt, lowest.astype(np.int64), highest.astype(np.int64))
    return replace(abstract, codes=codes.align(abstract.axis)[1])
