# SPDX-License-Identifier: Apache-2.0
"""Damaged programs are refused before they run, with a message."""

from dataclasses import replace
from functools import partial

import fuzz_programs
import numpy as np
import program_bombs
import pytest
from programs import change_record

from anybit.compiler.program import program as p
from anybit.compiler.program import versions
from anybit.compiler.program.encoding import Encoded, encode
from anybit.compiler.program.network import Network

WINDOW = p.Window(3, 3, 1, 1, 1, 1, 1, 1, 1, 1)
POOL = p.Window(2, 2, 2, 2, 1, 1, 0, 0, 0, 0)


def ints(*values):
    return np.array(values, np.int32)


def bytes_of(*values):
    return np.array(values, np.uint8)


QUANTIZE = p.Quantize(0, 0, ints(1), np.float32([-1, 0, 1]), 0)
PRODUCT = p.Product(
    *(0, 1, WINDOW, 1, 2, np.full(36, 0b11100100, np.uint8), ints(-2, -1, 1, 2)),
    p.Thresholds(ints(1, -1), ints(-5, 0, 5, -9, -9, 9)),
)
MAXPOOL = p.MaxPool(1, 2, POOL)
LOOKUP = p.Lookup(2, 3, bytes_of(0, 1, 1, 0))
COMBINE = p.Combine(3, 3, 4, bytes_of(0, 1, 1, 0))
ADD = p.Add(4, 3, 5, ints(0, 1), np.float32([1, -1]), np.float32([0.5]), np.float32([1]), 0, 0, 1)
GATHER = p.Gather(5, 6, ints(0, -1), ints(1, 0), ints(1, 0, 1), 0, 1)
RESHAPE = p.Reshape(6, 7, 1, 0)
DEQUANTIZE = p.Dequantize(7, 0, np.float32([-1, 1]))
HALF = p.Step(p.Operation.MULTIPLY, np.float32([0.5]))
ELEMENTWISE = p.Elementwise(1, 1, 1, p.Operation.ADD, (HALF,))
INSTRUCTIONS = (
    *(QUANTIZE, PRODUCT, MAXPOOL, LOOKUP, COMBINE, ADD, GATHER, RESHAPE, DEQUANTIZE, ELEMENTWISE),
)
TENSORS = (
    *(p.Tensor(4, 4, 8, -2, 1, 4), p.Tensor(4, 4, 2, 0, 1, 4), p.Tensor(2, 2, 2, 0, 1, 4)),
    *(p.Tensor(2, 2, 2, -1, 2, 2), p.Tensor(2, 2, 2, -1, 2, 2), p.Tensor(2, 2, 2, -1, 2, 2)),
    *(p.Tensor(2, 2, 3, -1, 2, 2), p.Tensor(1, 1, 12, -1, 2, 2)),
)
SOUND = p.Program(
    (p.Port(ints(8, 4, 4), 4, 4, 8, 1),),
    (p.Port(ints(12), 1, 1, 12, 0),),
    TENSORS,
    INSTRUCTIONS,
    (p.FloatTensor(1, 1, 12),),
)


with_instruction = partial(change_record, SOUND, "instructions")
with_tensor = partial(change_record, SOUND, "tensors")
with_port = partial(change_record, SOUND, "inputs", 0)


def with_epilogue(epilogue):
    return with_instruction(1, epilogue=epilogue)


def scaled(**fields):
    return replace(p.Scaled(ints(1, 1), ints(0, 0, 0, 0), bytes_of(0, 0), bytes_of()), **fields)


def test_verify_accepts_sound_program():
    (y,) = Network(SOUND).run([np.zeros((3, 8, 4, 4), np.float32)])
    assert y.shape == (3, 12)


NAN = np.nan
HUGE = 2**40
ROWS = [
    (replace(SOUND, inputs=()), "number of inputs must be from 1"),
    (replace(SOUND, outputs=()), "number of outputs must be from 1"),
    (replace(SOUND, instructions=INSTRUCTIONS[:-1]), "an output is never written"),
    (with_port(sizes=ints(8, 4, 5)), "product of the sizes must be 128, got 160"),
    (with_port(sizes=ints(-8, -4, 4)), "a size must be from 1"),
    (with_port(channels_first=2), "channels_first must be from 0 to 1, got 2"),
    (with_port(sizes=ints(*[1] * 70, 128)), "number of sizes must be from 0 to 63"),
    (with_tensor(0, height=0), "height must be from 1"),
    (with_tensor(0, height=HUGE), "height must be from 1"),
    (with_tensor(0, height=2**24, width=2**24), "number of elements must be"),
    (with_tensor(0, levels=257), "levels must be from 1 to 256, got 257"),
    (with_tensor(0, step=0), "step must be from 1"),
    (with_tensor(0, lowest=-(2**63)), "lowest must be from"),
    (with_tensor(0, lowest=2**24), "highest code must be from"),
    (with_instruction(0, source=1), "floats 1 are read before they are written"),
    (with_instruction(0, source=3), "number of the floats must be from 0 to 2, got 3"),
    (with_instruction(0, source=-1), "number of the floats must be from 0 to 2, got -1"),
    (with_instruction(0, target=1), "Quantize.*differ in their sizes"),
    (with_instruction(0, target=8), "number of the tensor must be from 0 to 7, got 8"),
    (with_instruction(0, directions=ints(0)), "a direction is 0"),
    (with_instruction(0, directions=ints(-(2**31))), "a direction is -2147483648"),
    (with_instruction(0, directions=ints(1, 1)), "directions must have 1 or 8 elements, got 2"),
    (with_instruction(0, thresholds=np.float32([0, 1])), "must have 3 or 24 elements, got 2"),
    (with_instruction(0, thresholds=np.float32([0, 2, 1])), "thresholds descend"),
    (with_instruction(0, thresholds=np.float32([0, NAN, 1])), "a threshold is NaN"),
    (with_instruction(0, nan=4), "index of NaN must be from -1 to 3, got 4"),
    (with_instruction(1, source=1), "tensor 1 is read before it is written"),
    (with_instruction(1, target=0), "tensor 0 is written twice"),
    (with_instruction(1, groups=3), "3 groups of 8 and 2 channels"),
    (with_instruction(1, groups=0), "groups must be from 1 to 8, got 0"),
    (with_instruction(1, weight_bits=9), "weight_bits must be from 1 to 8, got 9"),
    (with_instruction(1, weight_bits=1), "weights must have 18 elements, got 36"),
    (with_instruction(1, weights=PRODUCT.weights[:-1]), "weights must have 36 elements, got 35"),
    (with_instruction(1, values=ints(-2, -1, 1)), "a weight has no value, index 3"),
    (with_instruction(1, values=ints(-2, -1, 1, 128)), "a value must be from -128 to 127, got 128"),
    (with_instruction(1, values=ints()), "number of values must be from 1 to 4, got 0"),
    (with_instruction(1, window=replace(WINDOW, pad_top=0)), "number of windows must be 3, got 4"),
    (with_instruction(1, window=replace(WINDOW, pad_left=-1)), "pad_left must be from 0"),
    (with_instruction(1, window=replace(WINDOW, stride_height=0)), "stride_height must be from 1"),
    (with_instruction(1, window=replace(WINDOW, dilation_width=HUGE)), "dilation_width must be"),
    (with_instruction(1, window=replace(WINDOW, dilation_width=9)), "a window of 19 over 6"),
    (with_tensor(0, lowest=-(2**23), step=2**22), "accumulators of channel 0 go beyond 32"),
    (
        with_epilogue(p.Thresholds(ints(1), ints(*range(6)))),
        "directions must have 2 elements, got 1",
    ),
    (with_epilogue(p.Thresholds(ints(1, 2), ints(*range(6)))), "a direction is 2"),
    (with_epilogue(p.Thresholds(ints(1, -(2**31)), ints(*range(6)))), "a direction is -2147483648"),
    (with_epilogue(p.Thresholds(ints(1, 1), ints(*range(5)))), "must have 6 elements, got 5"),
    (with_epilogue(p.Thresholds(ints(1, 1), ints(0, 2, 1, 0, 0, 0))), "thresholds descend"),
    (
        with_epilogue(p.Affine(np.float32([1, 1]), np.float32([0]), 0)),
        "offsets must have 2 elements",
    ),
    (with_epilogue(p.Affine(np.float32([1, np.inf]), np.float32([0, 0]), 0)), "is not finite"),
    (
        with_epilogue(p.Affine(np.float32([1, 1]), np.float32([0, 0]), 2**20 + 1)),
        "the shift must be from",
    ),
    (with_epilogue(scaled(terms=ints(0, 0))), "terms must have 4 elements, got 2"),
    (with_epilogue(scaled(terms=ints(1, 2**30, 0, 0))), "a term must be from"),
    (
        with_epilogue(scaled(right_shifts=bytes_of(0, 52))),
        "a right shift must be from 0 to 51, got 52",
    ),
    (with_epilogue(scaled(late=bytes_of(0, 0))), "late must have 1 elements, got 2"),
    (with_epilogue(p.Rounded(np.float32([1]), (), 0)), "scales must have 2 elements, got 1"),
    (with_epilogue(p.Rounded(np.float32([1, 1]), (), 2**20 + 1)), "the shift must be from"),
    (
        with_epilogue(p.Rounded(np.float32([1, 1]), (p.Step(12, np.zeros(1, np.float32)),), 0)),
        "an operation must be from 0 to 11, got 12",
    ),
    (
        with_epilogue(p.Table(ints(-90, -90), np.zeros(300, np.uint8))),
        "accumulators from -.* to .*",
    ),
    (
        with_epilogue(p.Table(ints(-900, 900), np.zeros(3000, np.uint8))),
        "channel 1 has accumulators",
    ),
    (
        with_epilogue(p.Table(ints(-900, -900), np.full(3600, 4, np.uint8))),
        "an entry must be from 0",
    ),
    (with_epilogue(p.Table(ints(0, 0), np.zeros(3, np.uint8))), "3 entries for 2 channels"),
    (with_epilogue(p.Table(ints(0, 0), bytes_of())), "0 entries for 2 channels"),
    (with_epilogue(p.Piecewise(ints(), bytes_of(0, 1, 2))), "3 entries for 2 channels"),
    (
        with_epilogue(p.Piecewise(ints(), bytes_of())),
        "number of pieces must be from 1 to 512, got 0",
    ),
    (with_epilogue(p.Piecewise(ints(), np.zeros(1026, np.uint8))), "to 512, got 513"),
    (
        with_epilogue(p.Piecewise(ints(1), bytes_of(0, 1, 1, 0))),
        "starts must have 2 elements, got 1",
    ),
    (with_epilogue(p.Piecewise(ints(*(2, 1), *(0, 0)), bytes_of(*[0] * 6))), "starts descend"),
    (with_epilogue(p.Piecewise(ints(1, 1), bytes_of(0, 1, 4, 0))), "an entry must be from 0 to 3"),
    (with_epilogue(p.Arithmetic(np.float32([1, 1]), ())), "differ|number of windows must be"),
    (with_instruction(2, window=replace(POOL, pad_top=4)), "number of windows must be 4, got 2"),
    (
        replace(
            with_instruction(2, window=replace(POOL, pad_top=2, pad_bottom=1)),
            tensors=(*TENSORS[:2], replace(TENSORS[2], height=3), *TENSORS[3:]),
        ),
        "a window of a pooling is empty",
    ),
    (with_tensor(2, levels=5), "MaxPool.*differ in their codes"),
    (with_instruction(3, entries=bytes_of(0, 1, 2, 0)), "an entry must be from 0 to 1, got 2"),
    (with_instruction(3, entries=bytes_of(0, 1, 1)), "entries must have 4 or 8 elements, got 3"),
    (with_instruction(4, entries=bytes_of(0, 1)), "entries must have 4 or 8 elements, got 2"),
    (with_instruction(4, first=2), "entries must have 8 or 16 elements, got 4"),
    (with_instruction(4, first=0), "a source and the target differ in their sizes"),
    (with_instruction(5, first=0), "a source and the target differ in their sizes"),
    (with_instruction(5, first=6), "tensor 6 is read before it is written"),
    (with_instruction(5, target=4), "tensor 4 is written twice"),
    (with_instruction(5, zeros=ints(0)), "zeros must have 2 elements, got 1"),
    (with_instruction(5, zeros=ints(0, 2**20 + 1)), "a zero must be from -1048576 to 1048576"),
    (with_instruction(5, gains=np.float32([1])), "gains must have 2 elements, got 1"),
    (with_instruction(5, offset=np.float32([])), "the offset must have 1 elements, got 0"),
    (with_instruction(5, shift=2**20 + 1), "the shift must be from -1048576 to 1048576"),
    (with_instruction(5, shift=-(2**63)), "the shift must be from -1048576 to 1048576"),
    (with_instruction(5, lowest=-1), "the lowest index must be from 0 to 1, got -1"),
    (with_instruction(5, lowest=1, highest=0), "the highest index must be 1, got 0"),
    (with_instruction(5, highest=2), "the highest index must be from 0 to 1, got 2"),
    (with_instruction(6, rows=ints(0, 2)), "a row must be from -1 to 1, got 2"),
    (with_instruction(6, rows=ints(0, -2)), "a row must be from -1 to 1, got -2"),
    (with_instruction(6, columns=ints(0)), "columns must have 2 elements, got 1"),
    (with_instruction(6, channels=ints(0, 1)), "tensor 6 is read before it is written"),
    (with_instruction(6, channels=ints(0, 1, 2)), "a channel must be from -1 to 1, got 2"),
    (with_instruction(6, first_channel=1), "first channel must be 0, got 1"),
    (with_instruction(6, fill=-1), "index that fills must be from 0 to 1, got -1"),
    (with_instruction(7, source_channels_first=2), "source_channels_first must be from 0 to 1"),
    (with_tensor(7, channels=13), "Reshape.*number of elements must be 12, got 13"),
    (with_instruction(8, values=np.float32([1])), "values must have 2 or 24 elements, got 1"),
    (with_instruction(8, target=2), "number of the floats must be from 0 to 1, got 2"),
    (with_instruction(9, first=0), "Elementwise.*differ in their sizes"),
    (with_instruction(9, second=0), "second operand and the target differ in their sizes"),
    (with_instruction(9, second=2), "floats 2 are read before they are written"),
    (with_instruction(9, second=-2), "second operand must be -1, got -2"),
    (with_instruction(9, operation=p.Operation.KEEP), "operation must be from 0 to 6, got 7"),
    (with_instruction(9, steps=(replace(HALF, operands=np.float32([1, 2])),)), "operands must"),
    (with_instruction(9, steps=(HALF,) * 1025), "number of steps must be from 0 to 1024"),
    (replace(SOUND, floats=(p.FloatTensor(1, 0, 12),)), "width must be from 1"),
    (
        replace(SOUND, instructions=(*INSTRUCTIONS, DEQUANTIZE)),
        "floats 0 are written twice",
    ),
    (
        replace(SOUND, instructions=(*INSTRUCTIONS[:7], GATHER, *INSTRUCTIONS[7:])),
        "tensor 6 is written twice",
    ),
]


@pytest.mark.parametrize(("program", "message"), ROWS)
def test_verify_refuses_inconsistent_programs(program, message):
    with pytest.raises(ValueError, match=f"(?=.*damaged).*{message}.*compile the model again"):
        Network(program)


def with_words(edit):
    encoded = encode(SOUND)
    words = encoded.words.tolist()
    edit(words)
    return Encoded(np.array(words, np.int64), encoded.bytes, encoded.integers, encoded.floats)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda words: words.clear(), "it ends after 0 words"),
        (lambda words: words.pop(), "it ends after"),
        (lambda words: words.append(0), "1 words too many"),
        (lambda words: words.__setitem__(1, 2**62), "a list of 4611686018427387904 records"),
        (lambda words: words.__setitem__(1, -1), "a list of -1 records"),
        (lambda words: words.__setitem__(2, -1), "an array of 3 elements from -1 on"),
        (lambda words: words.__setitem__(3, 2**63 - 1), "an array of 9223372036854775807 elements"),
        (
            lambda words: words.__setitem__(0, versions.VERSION + 1),
            f"has version {versions.VERSION + 1}, .* 2 to {versions.VERSION}; install a newer",
        ),
        (lambda words: words.__setitem__(0, 0), "has version 0, .* compile the model again"),
    ],
)
def test_verify_refuses_random_words(edit, message):
    with pytest.raises(ValueError, match=message):
        Network(with_words(edit))


def test_verify_refuses_unknown_instruction():
    encoded = encode(replace(SOUND, instructions=(QUANTIZE,), floats=()))
    words = encoded.words.copy()
    place = len(words) - 12
    assert words[place] == 0
    words[place] = len(p.INSTRUCTIONS)
    with pytest.raises(ValueError, match=f"a record of kind {len(p.INSTRUCTIONS)}, there are"):
        Network(Encoded(words, encoded.bytes, encoded.integers, encoded.floats))


@pytest.mark.parametrize("part", ["words", "bytes", "integers", "floats"])
def test_verify_refuses_arrays_of_other_types(part):
    encoded = replace(encode(SOUND), **{part: np.zeros(3, np.float64)})
    with pytest.raises(TypeError, match=f"{part} must be a contiguous array of"):
        Network(encoded)


def test_verify_includes_padding_in_ranges():
    """Refuse tables without the sums of windows that reach beyond the tensor."""
    tensors = (p.Tensor(1, 2, 1, 1, 1, 2), p.Tensor(1, 3, 1, 0, 1, 4))
    port, out = p.Port(ints(2), 1, 2, 1, 0), p.Port(ints(3), 1, 3, 1, 0)
    window = p.Window(1, 2, 1, 1, 1, 1, 0, 1, 0, 1)
    quantize = p.Quantize(0, 0, ints(1), np.float32([0]), 0)
    last = p.Dequantize(1, 0, np.float32([0, 1, 2, 3]))
    for first, fits in ((0, True), (1, False)):
        epilogue = p.Table(ints(first), np.zeros(5 - first, np.uint8))
        product = p.Product(0, 1, window, 1, 1, bytes_of(0), ints(1), epilogue)
        program = p.Program((port,), (out,), tensors, (quantize, product, last))
        if fits:
            Network(program).run([np.zeros((1, 2), np.float32)])
        else:
            with pytest.raises(
                ValueError, match="accumulators from 0 to 4, its table those from 1"
            ):
                Network(program)


@pytest.mark.parametrize("case", range(20))
def test_verify_refuses_or_runs_damaged_programs(case):
    rng = np.random.default_rng(case)
    program = fuzz_programs.made.make_program(fuzz_programs.made.FromGenerator(rng))
    inputs = fuzz_programs.made.inputs_for(program, 2, case)
    encoded = encode(program)
    for _ in range(30):
        fuzz_programs.run_if_small(fuzz_programs.damaged(encoded, rng), inputs)


@pytest.mark.parametrize(
    ("make", "size", "message"),
    [
        (program_bombs.shared_weights, 130, "its instructions refer to more than 4 times"),
        (program_bombs.wide_kernel, 1500, "bytes of memory to load"),
        (program_bombs.long_products, 20, "bytes of memory to load"),
        (program_bombs.long_chain, 40_000, "the number of instructions must be from 0 to 32768"),
        (program_bombs.many_gathers, 2000, "tensor 1 is read before it is written"),
    ],
)
def test_verify_limits_memory_of_small_programs(make, size, message):
    with pytest.raises(ValueError, match=message):
        Network(make(size))


def test_version_is_least_that_has_all_records():
    earlier = replace(SOUND, instructions=INSTRUCTIONS[:-1], floats=())
    assert encode(earlier).words[0] == versions.FIRST_VERSION
    product = replace(PRODUCT, epilogue=scaled())
    instructions = (QUANTIZE, product, *INSTRUCTIONS[2:-1])
    encoded = encode(replace(earlier, instructions=instructions))
    assert encoded.words[0] == versions.SINCE[p.Scaled]
    Network(encoded)
    encoded.words[0] = versions.FIRST_VERSION
    with pytest.raises(ValueError, match="version 2 has no Scaled"):
        Network(encoded)
