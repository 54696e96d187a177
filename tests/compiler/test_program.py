# SPDX-License-Identifier: Apache-2.0
"""Records, encoding and reference of programs."""

import numpy as np
import pytest

from anybit.compiler.program import encoding, reference, versions
from anybit.compiler.program import program as p

ONE = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)


def integers(*values):
    return np.array(values, np.int32)


def floats(*values):
    return np.array(values, np.float32)


def bipolar_layer(epilogue=None, nan=-1):
    """Four signs times the weights -1 1 -1 1 and 1 1 1 1."""
    weights = np.packbits([0, 1, 0, 1, 1, 1, 1, 1], bitorder="little")
    half = p.Step(p.Operation.ADD, floats(0.5))
    epilogue = p.Arithmetic(floats(1, 2), (half,)) if epilogue is None else epilogue
    return p.Program(
        inputs=(p.Port(integers(4), 1, 1, 4, 0),),
        outputs=(p.Port(integers(2), 1, 1, 2, 0),),
        tensors=(p.Tensor(1, 1, 4, -1, 2, 2),),
        instructions=(
            p.Quantize(0, 0, integers(1), floats(0), nan),
            p.Product(0, 0, ONE, 1, 1, weights, integers(-1, 1), epilogue),
        ),
    )


def test_reference_computes_bipolar_layer():
    (y,) = reference.run(bipolar_layer(), [np.array([[1, -1, 1, -1], [1, 2, 0, -3]], np.float32)])
    np.testing.assert_array_equal(y, [[-3.5, 0.5], [-1.5, 4.5]])


def test_reference_returns_no_rows_for_no_rows():
    (y,) = reference.run(bipolar_layer(), [np.zeros((0, 4), np.float32)])
    assert y.shape == (0, 2)


def test_reference_refuses_nan_or_gives_index():
    x = np.array([[np.nan, 1, 1, 1]], np.float32)
    with pytest.raises(ValueError, match="NaN"):
        reference.run(bipolar_layer(), [x])
    (y,) = reference.run(bipolar_layer(nan=0), [x])
    np.testing.assert_array_equal(y, [[2.5, 4.5]])


def test_reference_scales_down():
    """Shifts round down, terms have 64 bits, and index 1 of the second channel is one late."""
    terms = reference.split_words(np.array([2**40 + 2, 3]))
    epilogue = p.Scaled(integers(2**31 - 1, -1), terms, np.uint8([40, 1]), np.uint8([0b1000000]))
    index = reference.apply_epilogue(epilogue, np.array([[0, 4], [-600, 1], [600, 0], [5, -9]]), 5)
    np.testing.assert_array_equal(index, [[1, 0], [0, 0], [2, 1], [1, 4]])


def test_encode_writes_words():
    encoded = encoding.encode(bipolar_layer())
    port, tensor = [0, 1, 1, 1, 4, 0], [1, 1, 4, -1, 2, 2]
    assert encoded.words[: 2 + len(port)].tolist() == [versions.FIRST_VERSION, 1, *port]
    assert encoded.words[15 : 15 + 1 + len(tensor)].tolist() == [1, *tensor]
    assert encoded.bytes.tolist() == [0b11111010]


def test_encode_stores_equal_arrays_once():
    program = bipolar_layer(p.Arithmetic(floats(3, 4), (p.Step(p.Operation.ADD, floats(3, 4)),)))
    assert encoding.encode(program).floats.tolist() == [0, 3, 4]


def test_reference_gathers_and_fills():
    """Two rows of three pixels: the lower one, then none; two concatenated ranges of channels."""
    pixels, codes = p.Tensor(2, 3, 2, 0, 1, 16), p.Tensor(2, 2, 3, 0, 1, 16)
    program = p.Program(
        inputs=(p.Port(integers(2, 3, 2), 2, 3, 2, 0),),
        outputs=(p.Port(integers(2, 2, 3), 2, 2, 3, 0),),
        tensors=(pixels, codes),
        instructions=(
            p.Quantize(0, 0, integers(1), floats(*range(1, 16)), 0),
            p.Gather(0, 1, integers(1, -1), integers(2, 0), integers(1), 0, 15),
            p.Gather(0, 1, integers(0, 1), integers(-1, 1), integers(0, -1), 1, 14),
            p.Dequantize(1, 0, floats(*range(16))),
        ),
    )
    (y,) = reference.run(program, [np.arange(12, dtype=np.float32).reshape(1, 2, 3, 2)])
    np.testing.assert_array_equal(y, [[[[11, 14, 14], [7, 2, 14]], [[15, 14, 14], [15, 8, 14]]]])
