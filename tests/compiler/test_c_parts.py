# SPDX-License-Identifier: Apache-2.0
"""Parts of C source: places in memory, packed weights, constants and integer epilogues."""

import itertools
from typing import Any

import numpy as np
import pytest

from anybit.compiler.backends.c.arena import ALIGNMENT, Buffer, plan_arena
from anybit.compiler.backends.c.distances import find_window_distance
from anybit.compiler.backends.c.literals import format_float, format_integer
from anybit.compiler.backends.c.types import store_tensor
from anybit.compiler.backends.c.weights import Packing, pack_rows
from anybit.compiler.program import program as p

SEEDS = range(30)


def make_buffers(rng: np.random.Generator) -> tuple[list[Buffer], dict[tuple[int, int], int]]:
    """Return buffers of a chain of instructions, and distances of targets before sources."""
    count = int(rng.integers(1, 12))
    buffers = []
    for number in range(count):
        first = int(rng.integers(0, 8))
        last = first + int(rng.integers(0, 4))
        buffers.append(Buffer(f"b{number}", int(rng.integers(1, 60)), first, last))
    distances = {
        (target, source): int(rng.integers(-30, 60))
        for target, source in itertools.permutations(range(count), 2)
        if buffers[source].last == buffers[target].first and rng.integers(2)
    }
    distances = {pair: way for pair, way in distances.items() if pair[::-1] not in distances}
    return buffers, distances


@pytest.mark.parametrize("seed", SEEDS)
def test_arena_overlaps_only_by_distances(seed: int) -> None:
    buffers, distances = make_buffers(np.random.default_rng(seed))
    arena = plan_arena(buffers, distances)
    offsets = dict(enumerate(arena.offsets))
    for a, b in itertools.permutations(offsets, 2):
        assert offsets[a] % ALIGNMENT == 0
        assert 0 <= offsets[a] <= arena.size - buffers[a].size
        apart = offsets[a] + buffers[a].size <= offsets[b]
        apart |= offsets[b] + buffers[b].size <= offsets[a]
        below = (a, b) in distances and offsets[a] + distances[a, b] <= offsets[b]
        above = (b, a) in distances and offsets[b] + distances[b, a] <= offsets[a]
        assert apart or below or above or not buffers[a].meets(buffers[b])
    used = [arena.used_at(place) for place in range(12)]
    assert max(used) <= arena.size < max(used) + ALIGNMENT


@pytest.mark.parametrize("seed", SEEDS)
def test_arena_is_near_the_smallest(seed: int) -> None:
    """Compare with the largest sum of buffers at one instruction, which no placement is below."""
    rng = np.random.default_rng(seed)
    buffers, _ = make_buffers(rng)
    least = max(
        sum(buffer.size for buffer in buffers if buffer.first <= place <= buffer.last)
        for place in range(12)
    )
    assert least <= plan_arena(buffers, {}).size <= 1.25 * least + ALIGNMENT * len(buffers)


@pytest.mark.parametrize("by_rows", [False, True])
def test_windows_read_nothing_that_is_overwritten(by_rows: bool) -> None:
    """Write pixels into the memory of their source, at the distance and one byte nearer."""
    rng = np.random.default_rng(0)
    tight = 0
    for _ in range(300):
        kernel, stride, dilation = (rng.integers(1, 4, 2) for _ in range(3))
        pads = rng.integers(0, 3, 4)
        sizes = (kernel - 1) * dilation + rng.integers(1, 6, 2)
        target = (sizes + pads[:2] + pads[2:] - (kernel - 1) * dilation - 1) // stride + 1
        channels, pixel = rng.integers(1, 5, 2).tolist()
        window = p.Window(*map(int, (*kernel, *stride, *dilation, *pads)))
        x = store_tensor(p.Tensor(*sizes.tolist(), channels, 0, 1, 256))
        shape = *target.tolist(), pixel
        distance = find_window_distance(window, x, shape, by_rows=by_rows)
        assert not is_overwritten(window, x, shape, distance, by_rows)
        tight += is_overwritten(window, x, shape, distance - 1, by_rows)
    assert tight > 150


def is_overwritten(
    window: p.Window, x: Any, target: tuple[int, int, int], distance: int, by_rows: bool
) -> bool:
    """Return whether a pixel reads a byte that it or an earlier one has overwritten."""
    height, width, pixel = target
    end = -distance  # bytes of the source below this one are overwritten
    for row in range(height):
        reads = [list_reads(window, x, row, column) for column in range(width)]
        if by_rows:
            reads = [list(itertools.chain(*reads))]
        for places in reads:
            end += pixel * (width if by_rows else 1)
            if places and min(places) < end:
                return True
    return False


def list_reads(w: p.Window, x: Any, row: int, column: int) -> list[int]:
    places = []
    for i, j in itertools.product(range(w.kernel_height), range(w.kernel_width)):
        y_row = row * w.stride_height + i * w.dilation_height - w.pad_top
        y_column = column * w.stride_width + j * w.dilation_width - w.pad_left
        if 0 <= y_row < x.height and 0 <= y_column < x.width:
            places.append((y_row * x.width + y_column) * x.channels)
    return places


def unpack(packed: Any, count: int) -> np.ndarray:
    """Return weights as C computes them, byte by byte."""
    rows = []
    for row in packed.rows:
        digits = []
        for byte in row.tolist():
            if packed.packing is Packing.INT8:
                digits.append(byte)
            elif packed.packing is Packing.TERNARY:
                for _ in range(5):
                    byte = (byte & 255) * 3
                    digits.append(byte >> 8)
            else:
                per = packed.packing.per_byte
                digits += [byte >> 8 // per * i & (1 << 8 // per) - 1 for i in range(per)]
        rows.append(digits[:count])
    return packed.low + packed.step * np.array(rows)


VALUES = ([-1, 1], [-1, 0, 1], [0], [-128, 127], [-128, 0], [5, 7, 9], [0, 1, 2, 3], range(-8, 8))


@pytest.mark.parametrize("values", [*VALUES, range(-128, 128), range(0, 48, 3)])
@pytest.mark.parametrize("ternary", [False, True])
def test_weights_survive_packing(values: Any, ternary: bool) -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 4, 5, 7, 8, 9, 16, 31):
        weights = rng.choice(np.array(values, np.int64), (3, count))
        packed = pack_rows(weights, 255, ternary=ternary)
        np.testing.assert_array_equal(unpack(packed, count), weights)
        per = packed.packing.per_byte
        assert packed.rows.shape == (3, -(-count // per))
        assert packed.packing is not Packing.TERNARY or ternary


def test_digits_are_left_where_their_sums_exceed_32_bits() -> None:
    """Pack a row of one weight -128 and zeros: digits of -128 + 128 n have larger sums."""
    weights = np.zeros((1, 2**17), np.int64)
    weights[0, 0] = -128
    assert pack_rows(weights, 127).packing is Packing.UINT1
    assert pack_rows(weights, 129).packing is Packing.INT8


def test_constants_are_exact() -> None:
    edges = [
        sign * 2**bits + more
        for bits in (15, 16, 31, 32, 62)
        for sign in (-1, 1)
        for more in (-1, 0, 1)
    ]
    for number in (0, 1, *edges, -(2**63), 2**63 - 1):
        text = format_integer(number)
        assert eval(text) == number
        assert str(-(2**31)) not in text
        assert str(-(2**63)) not in text
    bits = np.random.default_rng(0).integers(0, 2**32, 3000).astype(np.uint32)
    for x in bits.view(np.float32):
        if np.isfinite(x):
            text = format_float(float(x)).removesuffix("f")
            assert np.float32(text).tobytes() == x.tobytes()
            assert "." in text or "e" in text
