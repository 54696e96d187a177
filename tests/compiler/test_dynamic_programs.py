# SPDX-License-Identifier: Apache-2.0
"""Instructions of computed scales: what they compute from hostile rows, and what is refused."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from programs import FromGenerator, change_record, inputs_for, make_program

from anybit.compiler.program import program as p
from anybit.compiler.program import versions
from anybit.compiler.program.encoding import encode
from anybit.compiler.program.network import Network
from anybit.compiler.program.reference import run


def floats(*numbers):
    return np.float32(numbers)


def ints(*numbers):
    return np.int32(numbers)


SCALE = p.DynamicScale(0, 0, 1, floats(255), floats(2.0**-116), floats(1.3344e36))
ZERO = p.DynamicZero(0, 1, 1, 0, 255)
QUANTIZE = p.DynamicQuantize(0, 1, 2, 0, 0)
VALUES = p.Dequantize(0, 2, np.arange(256, dtype=np.float32))
INSTRUCTIONS = (SCALE, ZERO, QUANTIZE, VALUES)
FLOATS = (p.FloatTensor(2, 1, 1), p.FloatTensor(2, 1, 1))
SOUND = p.Program(
    (p.Port(ints(2, 1, 40), 2, 1, 40, 0),),
    (p.Port(ints(2, 1, 42), 2, 1, 42, 0),),
    (p.Tensor(2, 1, 42, 0, 1, 256),),
    INSTRUCTIONS,
    FLOATS,
)


with_instruction = partial(change_record, SOUND, "instructions")
with_floats = partial(change_record, SOUND, "floats")
with_tensor = partial(change_record, SOUND, "tensors", 0)


def make_hostile_rows(count):
    rows = np.random.default_rng(0).normal(size=(count, 2, 1, 40)).astype(np.float32)
    special = [np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45, 0, -0.0]
    for number, row in enumerate(rows[: 2 * len(special)]):
        row[number % 2, 0, number] = special[number // 2]
    rows[20] = 0
    rows[21] = -np.abs(rows[21])
    rows[22] = np.abs(rows[22]) * np.float32(1e-41)
    rows[23] = np.float32([3e38, -3e38] * 40).reshape(2, 1, 40)
    return rows


@pytest.mark.parametrize("pixels", [2, 1])
@pytest.mark.parametrize("count", [0, 1, 30])
@pytest.mark.usefixtures("level")
def test_kernels_equal_reference_on_hostile_rows(pixels, count):
    sizes = tuple(replace(tensor, height=pixels) for tensor in FLOATS)
    program = replace(SOUND, floats=sizes)
    x = make_hostile_rows(30)[:count]
    (expected,) = run(program, [x])
    (actual,) = Network(program).run([x])
    assert actual.tobytes() == expected.tobytes()


def test_rows_with_nan_have_codes_of_the_zero_point():
    x = make_hostile_rows(30)[:8]
    (codes,) = Network(SOUND).run([x])
    bad = ~np.isfinite(x).all(axis=-1)
    assert bad.sum() == 8
    assert (codes[bad] == codes[bad][..., -1:]).all()
    assert (codes[~bad].max(axis=-1) == 255).all()


@pytest.mark.parametrize("scale", [1.0, 0.75, 2.0**-140])
@pytest.mark.usefixtures("level")
def test_codes_that_are_rounded_first_are_those_of_dynamic_quantize_linear(scale):
    """Compare all zero-points, with all ties and the numbers next to them."""
    steps = np.arange(-1100, 1101, dtype=np.float32) / 2 * np.float32(scale)
    special = floats(np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0)
    sides = [np.nextafter(steps, np.float32(side)) for side in (-np.inf, np.inf)]
    numbers = np.concatenate([steps, *sides, special])
    ports = tuple(p.Port(ints(1, 1, n), 1, 1, n, 0) for n in (numbers.size, 1, 1))
    program = p.Program(
        ports,
        ports[:1],
        (p.Tensor(1, 1, numbers.size, 0, 1, 256),),
        (p.DynamicQuantize(0, 1, 2, 0, 1), p.Dequantize(0, 0, np.arange(256, dtype=np.float32))),
    )
    zeros = np.arange(256, dtype=np.float32).reshape(-1, 1, 1, 1)
    x = np.broadcast_to(numbers, (256, 1, 1, numbers.size)).copy()
    inputs = [x, np.full_like(zeros, scale), zeros]
    rounded = np.rint(x.astype(np.float64) / np.float32(scale))
    expected = np.where(np.isnan(x), 0, np.clip(rounded + zeros, 0, 255))
    for (codes,) in (run(program, inputs), Network(program).run(inputs)):
        np.testing.assert_array_equal(codes, expected)


@pytest.mark.usefixtures("level")
def test_random_programs_equal_reference():
    count = 0
    for seed in range(100):
        program = make_program(FromGenerator(np.random.default_rng(seed)))
        if not any(isinstance(at, p.DynamicQuantize) for at in program.instructions):
            continue
        inputs = inputs_for(program, 2, seed)
        try:
            expected = run(program, inputs)
        except ValueError:
            continue
        count += 1
        for actual, y in zip(Network(program).run(inputs), expected, strict=True):
            np.testing.assert_array_equal(actual, y, strict=True)
    assert count > 10


@pytest.mark.usefixtures("level")
def test_zero_points_of_zero_have_the_sign_of_the_reference():
    program = p.Program(
        SOUND.inputs,
        (p.Port(ints(2, 1, 1), 2, 1, 1, 0),),
        (),
        (SCALE, replace(ZERO, lowest=-128, highest=127)),
        FLOATS[:1],
    )
    x = np.zeros((1, 2, 1, 40), np.float32)
    x[..., 0], x[..., 1] = -127.7, 127.3
    (expected,) = run(program, [x])
    (zero,) = Network(program).run([x])
    assert zero.tobytes() == expected.tobytes() == np.zeros(2, np.float32).tobytes()


def test_version_is_4():
    assert encode(SOUND).words[0] == versions.SINCE[p.DynamicScale] == 4


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (with_instruction(0, source=1), "DynamicScale.*read before they are written"),
        (with_instruction(0, source=9), "number of the floats must be from 0 to 3, got 9"),
        (with_instruction(0, asymmetric=2), "asymmetric must be from 0 to 1, got 2"),
        (with_instruction(0, steps=floats(0)), "steps, least or most is not positive and finite"),
        (with_instruction(0, least=floats(np.nan)), "not positive and finite"),
        (with_instruction(0, most=floats(np.inf)), "not positive and finite"),
        (with_instruction(0, steps=floats(1, 2)), "steps, least and most must have 1"),
        (with_floats(0, channels=2), "the target must be 1, got 2"),
        (with_floats(0, height=3), "the target and the source differ in their sizes"),
        (with_floats(1, height=1), "DynamicZero.*differ in their sizes"),
        (with_instruction(1, scale=2), "DynamicZero.*floats 2 are read before"),
        (with_instruction(1, lowest=256), "the highest zero must be from 256"),
        (with_instruction(1, highest=2**21), "the highest zero must be from 0 to 1048576"),
        (with_instruction(2, zero=-1), "the number of channels must be 40, got 42"),
        (with_instruction(2, zero=-2), "the zero must be -1, got -2"),
        (with_instruction(2, zero=0), "DynamicQuantize.*differ in their sizes"),
        (with_instruction(2, scale=0), "the scale must be 1, got 40"),
        (with_instruction(2, target=1), "number of the tensor must be 0, got 1"),
        (with_tensor(height=1), "DynamicQuantize.*differ in their sizes"),
        (with_tensor(channels=39), "the number of channels must be from 40"),
        (with_tensor(step=2), "step must be 1, got 2"),
        (with_tensor(lowest=-(2**21)), "lowest must be from -1048576"),
        (with_instruction(2, rounds_first=2), "rounds_first must be from 0 to 1, got 2"),
        (with_instruction(2, channels=ints(0, 1)), "channels must have 42 elements, got 2"),
        (with_instruction(2, channels=ints(*[40] * 42)), "a channel must be from -1 to 39"),
        (with_instruction(2, channels=ints(*[-2] * 42)), "a channel must be from -1 to 39"),
    ],
)
def test_verify_refuses_inconsistent_programs(program, message):
    with pytest.raises(ValueError, match=f"(?=.*damaged).*{message}"):
        Network(program)
