# SPDX-License-Identifier: Apache-2.0
"""Invariance of results to neighbours, memory layout, `out`, dtype and number of threads."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backends import OPERATORS as BY_NAME
from cases import OPERATORS, assert_same_bits, computed
from hypothesis import given
from hypothesis import strategies as st
from strategies import any_float, arrays, quantizers, x_arrays
from x_types import reads_codes

import anybit

any_operator = pytest.mark.parametrize("name", OPERATORS)


@any_operator
@given(data=st.data())
def test_operators_do_not_depend_on_neighbours(name: str, data: st.DataObject) -> None:
    """No element depends on its neighbours, nor on its place in a vector register."""
    quantize = data.draw(quantizers(name))
    x = np.tile(data.draw(x_arrays(name, any_float)), 5)
    first = data.draw(st.integers(0, len(x)))
    last = data.draw(st.integers(first, len(x)))
    whole = quantize(x)
    assert_same_bits(quantize(x[first:last]), whole[first:last], computed(repr(quantize), x))
    one_by_one = [quantize(x[place : place + 1]) for place in range(first, last)]
    together = np.concatenate([whole[:0], *one_by_one])
    assert_same_bits(together, whole[first:last], computed(repr(quantize), x[first:last]))


@any_operator
@given(data=st.data())
def test_operators_do_not_depend_on_memory_layout(name: str, data: st.DataObject) -> None:
    quantize = data.draw(quantizers(name))
    x = data.draw(x_arrays(name, any_float))
    expected = quantize(x)
    case = computed(repr(quantize), x)
    assert_same_bits(quantize(x[::-1])[::-1], expected, case)
    assert_same_bits(quantize(np.repeat(x, 3)[1::3]), expected, case)
    plane = np.array([x, x, -x])
    assert_same_bits(quantize(np.asfortranarray(plane))[1], expected, case)
    assert_same_bits(quantize(plane.T).T[0], expected, case)
    assert_same_bits(quantize(x.astype(x.dtype.newbyteorder(">"))), expected, case)


@any_operator
@given(data=st.data())
def test_operators_write_same_bits_to_out(name: str, data: st.DataObject) -> None:
    quantize = data.draw(quantizers(name))
    x = data.draw(x_arrays(name, any_float))
    expected = quantize(x)
    case = computed(repr(quantize), x)
    spaced = np.empty((len(x), 2), expected.dtype)[:, 1]
    returned = quantize(x, out=spaced)
    assert returned is spaced
    assert_same_bits(spaced.copy(), expected, case)
    if expected.dtype == x.dtype:
        in_place = x.copy()
        assert quantize(in_place, out=in_place) is in_place
        assert_same_bits(in_place, expected, case)
        # An output that overlaps x without being x must not be read after it was written.
        shifted = np.append(x, np.float32(0))
        quantize(shifted[:-1], out=shifted[1:])
        assert_same_bits(shifted[1:], expected, case)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@any_operator
@given(data=st.data())
def test_operators_compute_half_types_in_float32(
    name: str, dtype: Any, data: st.DataObject
) -> None:
    """Check that half types are computed in float32 with one rounding at the end."""
    quantize = data.draw(quantizers(name))
    with np.errstate(all="ignore"):
        x = data.draw(arrays(any_float)).astype(dtype)
        wide = x.astype(np.float32)
    taken = BY_NAME[name].inputs[0].domain
    if np.dtype(dtype).name not in taken.dtypes:
        with pytest.raises(TypeError, match=taken.description):
            quantize(x)
        return
    with np.errstate(all="ignore"):
        expected = quantize(wide).astype(dtype)
    assert_same_bits(quantize(x), expected, computed(repr(quantize), x))


@any_operator
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_operators_do_not_depend_on_threads(
    name: str, threads: int, set_threads: Callable[[int], None]
) -> None:
    """Enough elements for several threads, and a last block that is not full."""
    generator = np.random.default_rng(3)
    dtype = np.uint8 if reads_codes(BY_NAME[name]) else np.float32
    x = np.frombuffer(generator.bytes(np.dtype(dtype).itemsize * 700_001), dtype)
    quantize = {
        "int_quant": lambda x: anybit.int_quant(x, 0.3, 1, 4),
        "float_quant": lambda x: anybit.float_quant(x, 0.3, 4, 3, 7),
        "trunc": lambda x: anybit.trunc(x, 0.3, 1, 8, 1.2, 4),
        "trunc_v1": lambda x: anybit.trunc_v1(x, 0.3, 1, 8, 4),
        "bipolar_quant": lambda x: anybit.bipolar_quant(x, 0.3),
        "dynamic_quantize": lambda x: anybit.dynamic_quantize(x, np.float32([0.3])),
        "dynamic_dequantize": lambda x: anybit.dynamic_dequantize(x, np.float32([0.3])),
        "block_quant": lambda x: anybit.block_quant(x, block_size=1),
    }[name]
    parts = np.concatenate([quantize(part) for part in np.array_split(x, 300)])
    set_threads(threads)
    assert_same_bits(quantize(x), parts, computed(f"{name}_{threads}", x))
