# SPDX-License-Identifier: Apache-2.0
"""Products with a scale per block of channels: kernels, reference, and what is refused."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from programs import change_record

from anybit.compiler.program import program as p
from anybit.compiler.program import versions
from anybit.compiler.program.encoding import encode, pack_indices
from anybit.compiler.program.network import Network
from anybit.compiler.program.reference import run


def ints(*numbers):
    return np.int32(numbers)


def make_program(
    *, depth, channels, block, bits, codes, lowest=None, pixels=(1, 1), zeros=(), seed=0
):
    """Return codes of floats, times random weights.

    `zeros` are the sizes of zero-points, which are another input; `codes` are lowest and levels.
    Without the lowest weight, blocks of weights have zero-points, too.
    """
    random = np.random.default_rng(seed)
    height, width = pixels
    blocks = -(-depth // block)
    indices = random.integers(0, 2**bits, channels * depth).astype(np.uint8)
    scales = random.normal(0, 1, (channels, blocks)).astype(np.float32)
    sizes, weights = (0, 1 if zeros else -1, 0, block), indices.reshape(channels, depth)
    packed, first = pack_indices(indices, bits), lowest
    if lowest is None:
        zero_points = random.choice([0, 2**bits - 1, 2**bits // 2, 1], (channels, blocks))
        stored = pack_indices(zero_points.astype(np.uint8).ravel(), bits)
        first = -np.repeat(zero_points, block, axis=1)[:, :depth]
        product = p.AsymmetricBlockProduct(*sizes, bits, packed, stored, scales.ravel())
    else:
        product = p.BlockProduct(*sizes, lowest, bits, packed, scales.ravel())
    ports = [p.Port(ints(height, width, depth), height, width, depth, 0)]
    if zeros:
        ports.append(p.Port(ints(*zeros, 1), *zeros, 1, 0))
    thresholds = codes[0] + np.arange(codes[1] - 1, dtype=np.float32) + np.float32(0.5)
    program = p.Program(
        tuple(ports),
        (p.Port(ints(channels, height, width), height, width, channels, seed % 2),),
        (p.Tensor(height, width, depth, codes[0], 1, codes[1]),),
        (p.Quantize(0, 0, ints(1), thresholds, 0), product),
    )
    return program, first + weights.astype(np.int64), scales


def multiply(codes, weights, scales, block):
    """Return the results for integers less their zero-points, in plain loops."""
    y = np.zeros((len(codes), len(weights)), np.float32)
    for (row, channel), start in itertools.product(np.ndindex(y.shape), range(0, 10**4, block)):
        if start >= codes.shape[1]:
            continue
        part = slice(start, start + block)
        total = sum(
            int(q) * int(w) for q, w in zip(codes[row, part], weights[channel, part], strict=True)
        )
        product = np.float32(np.float32(total) * scales[channel, start // block])
        y[row, channel] = np.float32(y[row, channel] + product)
    return y


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_reference_equals_plain_loops(bits, block, asymmetric):
    codes = (-128, 256) if bits % 2 else (0, 256)
    lowest = None if asymmetric else -(2 ** (bits - 1))
    program, weights, scales = make_program(
        depth=150, channels=3, block=block, bits=bits, lowest=lowest, codes=codes
    )
    x = np.random.default_rng(1).integers(*codes, (2, 1, 1, 150)) % 256 + codes[0]
    (y,) = run(program, [x.astype(np.float32)])
    expected = multiply(x.reshape(2, -1), weights, scales, block)
    assert y.reshape(2, 3).tobytes() == expected.tobytes()


def test_zero_points_are_subtracted():
    program, weights, scales = make_program(
        depth=40, channels=5, block=16, bits=4, lowest=-3, codes=(0, 256), zeros=(1, 1)
    )
    random = np.random.default_rng(1)
    x, zero = random.integers(0, 256, (7, 1, 1, 40)), random.integers(0, 256, (7, 1, 1, 1))
    expected = multiply((x - zero).reshape(7, -1), weights, scales, 16)
    inputs = [x.astype(np.float32), zero.astype(np.float32)]
    for results in (run(program, inputs), Network(program).run(inputs)):
        assert results[0].reshape(7, 5).tobytes() == expected.tobytes()


CODES = ((-128, 256), (-127, 255), (0, 256), (0, 128), (-8, 16), (1000, 3), (-70000, 2))


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.usefixtures("level")
def test_kernels_equal_reference(bits, seed):
    random = np.random.default_rng(seed)
    block = int(random.choice([1, 3, 8, 16, 20, 32, 48, 64, 128, 1000]))
    codes = CODES[seed % len(CODES)]
    pixels = ((1, 1), (3, 2))[seed % 2]
    program, *_ = make_program(
        depth=int(random.choice([1, 5, 31, 32, 64, 100, 257])),
        channels=int(random.choice([1, 15, 16, 33, 64, 65, 130, 200])),
        block=block,
        bits=bits,
        lowest=int(random.choice([-(2 ** (bits - 1)), 0, -255, 7])),
        codes=codes,
        pixels=pixels,
        zeros=((), (1, 1), pixels)[seed % 3],
        seed=seed,
    )
    network = Network(program)
    for rows in (0, 1, 2, 7, 37):
        inputs = [
            (random.integers(0, codes[1], (rows, *port.sizes)) + codes[0]).astype(np.float32)
            for port in program.inputs
        ]
        (expected,), (actual,) = run(program, inputs), network.run(inputs)
        assert actual.tobytes() == expected.tobytes()


def add_blocks(codes, weights, scales, block):
    """Return the results for integers less their zero-points, with exact sums of 64 bits."""
    y = np.zeros((*codes.shape[:-1], len(weights)), np.float32)
    for number, start in enumerate(range(0, codes.shape[-1], block)):
        part = slice(start, start + block)
        sums = codes[..., part] @ weights[:, part].T
        y = y + sums.astype(np.float32) * scales[:, number]
    return y


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize(
    ("depth", "channels", "block"),
    [(1, 1, 1), (31, 17, 8), (100, 33, 32), (257, 130, 20), (64, 65, 64), (96, 200, 32)],
)
@pytest.mark.parametrize("zeros", [(), (1, 1)])
@pytest.mark.usefixtures("level")
def test_asymmetric_kernels_equal_integers(bits, depth, channels, block, zeros):
    sizes = {"depth": depth, "channels": channels, "block": block}
    codes = (0, 256) if zeros else (-128, 256)
    program, weights, scales = make_program(**sizes, bits=bits, codes=codes, zeros=zeros, seed=2)
    random = np.random.default_rng(bits)
    for rows in (1, 3, 37):
        x = random.integers(0, 256, (rows, 1, 1, depth)) + codes[0]
        x[::2] = random.choice([codes[0], codes[0] + 255], (len(x[::2]), 1, 1, 1))
        inputs = [x.astype(np.float32)]
        if zeros:
            inputs.append(random.choice([0, 7, 255], (rows, 1, 1, 1)).astype(np.float32))
        integers = x - (inputs[1].astype(np.int64) if zeros else 0)
        expected = add_blocks(integers.reshape(rows, depth), weights, scales, block)
        (actual,) = Network(program).run(inputs)
        assert actual.reshape(rows, channels).tobytes() == expected.tobytes()
        (y,) = run(program, inputs)
        assert y.tobytes() == actual.tobytes()


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("zeros", [(), (1, 1)])
@pytest.mark.usefixtures("level")
def test_zero_points_of_blocks_equal_wider_weights(bits, zeros):
    sizes = {"depth": 200, "channels": 70, "block": 32, "codes": (0, 256), "zeros": zeros}
    program, weights, _ = make_program(**sizes, bits=bits)
    wide, *_ = make_program(**sizes, bits=bits + 1, lowest=1 - 2**bits)
    indices = (weights + 2**bits - 1).astype(np.uint8).ravel()
    scales, packed = program.instructions[1].scales, pack_indices(indices, bits + 1)
    wide = change_record(wide, "instructions", 1, weights=packed, scales=scales)
    for rows in (1, 9):
        inputs = [
            np.random.default_rng(rows).integers(0, 256, (rows, *port.sizes)).astype(np.float32)
            for port in program.inputs
        ]
        (expected,), (actual,) = Network(wide).run(inputs), Network(program).run(inputs)
        assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("code", [-128, 127])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.usefixtures("level")
def test_largest_blocks_with_zero_points(bits, code, rows):
    block = p.MOST_ASYMMETRIC_BLOCK
    program, weights, scales = make_program(
        depth=block + 5, channels=18, block=block, bits=bits, codes=(-128, 256)
    )
    x = np.full((rows, 1, 1, block + 5), code)
    expected = add_blocks(x.reshape(rows, -1), weights, scales, block)
    (actual,) = Network(program).run([x.astype(np.float32)])
    assert actual.reshape(rows, -1).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("depth", "block"), [(1000, 1), (1100, 1), (3000, 20), (8192, 32), (8200, 32)]
)
@pytest.mark.usefixtures("level")
def test_rows_that_share_a_buffer(depth, block):
    program, *_ = make_program(
        depth=depth, channels=50, block=block, bits=4, lowest=-8, codes=(-128, 256)
    )
    x = np.random.default_rng(0).integers(-128, 128, (13, 1, 1, depth)).astype(np.float32)
    (expected,), (actual,) = run(program, [x]), Network(program).run([x])
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38, -0.0, 2.5])
@pytest.mark.usefixtures("level")
def test_any_zero_point_is_one_of_the_codes(number):
    program, *_ = make_program(
        depth=40, channels=5, block=16, bits=4, lowest=-3, codes=(-5, 250), zeros=(1, 1)
    )
    x = np.random.default_rng(0).normal(0, 80, (2, 1, 1, 40)).astype(np.float32)
    inputs = [x, np.full((2, 1, 1, 1), number, np.float32)]
    (expected,), (actual,) = run(program, inputs), Network(program).run(inputs)
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("scale", [np.nan, np.inf, 3e38, 1e-45, -0.0])
@pytest.mark.usefixtures("level")
def test_any_scale(scale):
    program, *_ = make_program(
        depth=64, channels=17, block=32, bits=4, lowest=-8, codes=(-128, 256)
    )
    product = program.instructions[1]
    scales = product.scales.copy()
    scales[5:9] = scale
    program = change_record(program, "instructions", 1, scales=scales)
    x = np.random.default_rng(0).normal(0, 80, (3, 1, 1, 64)).astype(np.float32)
    (expected,), (actual,) = run(program, [x]), Network(program).run([x])
    np.testing.assert_array_equal(actual, expected)
    assert actual[~np.isnan(actual)].tobytes() == expected[~np.isnan(expected)].tobytes()


def test_sums_of_32_bits():
    depth = 33025
    program, *_ = make_program(
        depth=depth, channels=1, block=depth, bits=8, lowest=0, codes=(0, 256)
    )
    product = program.instructions[1]
    ones = np.full_like(product.weights, 255)
    program = change_record(program, "instructions", 1, weights=ones, scales=np.float32([1]))
    x = np.full((1, 1, 1, depth), 255, np.float32)
    (expected,), (actual,) = run(program, [x]), Network(program).run([x])
    assert actual == expected == np.float32(depth * 255 * 255)
    wide, *_ = make_program(
        depth=depth + 1, channels=1, block=depth + 1, bits=8, lowest=0, codes=(0, 256)
    )
    with pytest.raises(ValueError, match="accumulators go beyond 32 bits"):
        Network(wide)


SOUND, *_ = make_program(
    depth=40, channels=6, block=16, bits=4, lowest=-8, codes=(0, 256), zeros=(1, 1)
)
with_product = partial(change_record, SOUND, "instructions", 1)
with_tensor = partial(change_record, SOUND, "tensors", 0)
ASYMMETRIC, *_ = make_program(depth=40, channels=6, block=16, bits=4, codes=(0, 256), zeros=(1, 1))
with_asymmetric = partial(change_record, ASYMMETRIC, "instructions", 1)


@pytest.mark.parametrize(("program", "version"), [(SOUND, 6), (ASYMMETRIC, 8)])
def test_version(program, version):
    kind = type(program.instructions[1])
    assert encode(program).words[0] == versions.SINCE[kind] == version
    older = encode(program)
    older.words[0] = version - 1
    with pytest.raises(ValueError, match=f"version {version - 1} has no {kind.__name__}"):
        Network(older)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (with_product(source=1), "the number of the tensor must be 0, got 1"),
        (with_product(target=1), "the number of the floats must be 0, got 1"),
        (with_product(zero=-2), "the zero must be -1, got -2"),
        (with_product(zero=0), "the zero must be 1, got 40"),
        (with_product(zero=2), "floats 2 are read before they are written"),
        (with_product(zero=3), "the number of the floats must be from 0 to 2, got 3"),
        (with_product(block=0), "block must be from 1 to"),
        (with_product(block=2**40), "block must be from 1 to"),
        (with_product(block=8), "scales must have 30 elements, got 18"),
        (with_product(weight_bits=0), "weight_bits must be from 1 to 8, got 0"),
        (with_product(weight_bits=9), "weight_bits must be from 1 to 8, got 9"),
        (with_product(weight_bits=5), "weights must have 150 elements, got 120"),
        (with_product(lowest=-256), "the lowest weight must be from -255 to 255"),
        (with_product(lowest=2**62), "the lowest weight must be from -255 to 255"),
        (with_asymmetric(source=1), "the number of the tensor must be 0, got 1"),
        (with_asymmetric(target=1), "the number of the floats must be 0, got 1"),
        (with_asymmetric(zero=0), "the zero must be 1, got 40"),
        (with_asymmetric(block=0), "block must be from 1 to 16384, got 0"),
        (with_asymmetric(block=2**14 + 1), "block must be from 1 to 16384, got 16385"),
        (with_asymmetric(block=8), "scales must have 30 elements, got 18"),
        (with_asymmetric(weight_bits=9), "weight_bits must be from 1 to 8, got 9"),
        (with_asymmetric(weight_bits=5), "weights must have 150 elements, got 120"),
        (with_asymmetric(zero_points=np.uint8([1])), "zero-points must have 9 elements, got 1"),
        (with_tensor(step=2), "step must be 1, got 2"),
        (with_tensor(channels=41), "differ in their sizes"),
    ],
)
def test_verify_refuses_inconsistent_programs(program, message):
    with pytest.raises(ValueError, match=f"(?=.*damaged).*{message}"):
        Network(program)


def test_verify_refuses_other_sizes_of_the_target():
    output = replace(SOUND.outputs[0], height=2, sizes=ints(6, 2, 1))
    with pytest.raises(ValueError, match=r"BlockProduct.*differ in their sizes"):
        Network(replace(SOUND, outputs=(output,)))
