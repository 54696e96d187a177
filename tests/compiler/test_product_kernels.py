# SPDX-License-Identifier: Apache-2.0
"""Product kernels equal the reference for all widths, shapes and epilogues."""

from collections.abc import Iterator

import numpy as np
import pytest
from programs import INSTRUCTION_SETS

from anybit._native import _core
from anybit.compiler.program import program as p
from anybit.compiler.program import reference
from anybit.compiler.program.network import Network

WINDOWS = {
    # kernel, stride, dilation, pads (top, left, bottom, right)
    "plain": (1, 1, 1, 1, 1, 1, 0, 0, 0, 0),
    "ordinary": (3, 3, 1, 1, 1, 1, 1, 1, 1, 1),
    "strided": (3, 2, 2, 3, 1, 1, 0, 2, 1, 0),
    "dilated": (2, 3, 1, 1, 2, 2, 1, 3, 2, 0),
    "wide": (1, 4, 1, 2, 1, 1, 0, 3, 0, 3),
    "long": (1, 7, 1, 1, 1, 1, 0, 3, 0, 3),
    "large": (5, 5, 2, 1, 1, 1, 2, 2, 2, 2),
}
# Groups, and channels of each on both sides; 80 make weights that the nearest cache does not hold.
CHANNELS = (
    *((1, 3, 17), (1, 64, 80), (1, 33, 16), (1, 80, 20)),
    *((2, 32, 24), (3, 5, 1), (37, 1, 1), (64, 1, 1)),
)

Random = np.random.Generator


@pytest.fixture
def levels() -> Iterator[list[str]]:
    """Return the ISA levels that this processor supports."""
    before, result = _core.isa(), []
    for level in INSTRUCTION_SETS:
        try:
            _core.set_isa(level)
        except ValueError:
            continue
        result.append(level)
    yield result
    _core.set_isa(before)


def integers(*values: int) -> p.Integers:
    return np.array(values, np.int32)


def values_of(random: Random, bits: int) -> p.Integers:
    """Return the values of weights of a width, of one of the kinds that kernels distinguish."""
    most = 1 << bits
    kinds = [
        np.arange(most) - most // 2,
        np.arange(most) if bits < 8 else np.arange(most) - 128,
        random.integers(-128, 128, most),
    ]
    if bits == 1:
        kinds += [np.array([-1, 1]), np.array([-3, 3])]
    if bits == 2:
        kinds += [np.array([-1, 0, 1]), np.array([0, 1, -2, -1]), np.array([5, 0, -5])]
    return kinds[random.integers(len(kinds))].astype(np.int32)


def tensor_of(random: Random, height: int, width: int, channels: int, levels: int) -> p.Tensor:
    lowest, step = [(0, 1), (-1, 1), (-(levels // 2), 1), (-levels + 1, 2), (3, 2)][
        random.integers(5)
    ]
    return p.Tensor(height, width, channels, lowest, step, levels)


def product_of(
    random: Random,
    source: p.Tensor,
    groups: int,
    channels: int,
    name: str,
    bits: int,
    epilogue: p.Epilogue,
) -> p.Product:
    window = p.Window(*WINDOWS[name])
    values = values_of(random, bits)
    count = channels * window.kernel_height * window.kernel_width * source.channels // groups
    indices = random.integers(0, len(values), count)
    if random.integers(4) == 0:
        indices[:] = np.argmax(np.abs(values))  # sums as large as they get
    flags = (indices[:, None] >> np.arange(bits) & 1).astype(np.uint8)
    weights = np.packbits(flags.reshape(-1), bitorder="little")
    return p.Product(0, 0, window, groups, bits, weights, values, epilogue)


def outer(source: p.Tensor, name: str) -> tuple[int, int]:
    w = p.Window(*WINDOWS[name])
    height = source.height + w.pad_top + w.pad_bottom - (w.kernel_height - 1) * w.dilation_height
    width = source.width + w.pad_left + w.pad_right - (w.kernel_width - 1) * w.dilation_width
    return (height - 1) // w.stride_height + 1, (width - 1) // w.stride_width + 1


def program_of(
    random: Random, sizes: tuple[int, int, int], name: str, widths: tuple[int, int], kind: str
) -> p.Program:
    """Return a program with one product, whose outputs are its accumulators or indices."""
    bits, activation_bits = widths
    groups, inner, item = sizes
    levels = int(random.integers(2 ** (activation_bits - 1) + 1, 2**activation_bits + 1))
    source = tensor_of(random, 7, 9, groups * inner, levels)
    channels = groups * item
    height, width = outer(source, name)
    inside = p.Port(integers(7, 9, source.channels), 7, 9, source.channels, 0)
    outside = p.Port(integers(channels, height, width), height, width, channels, 1)
    quantize = p.Quantize(
        0, 0, integers(1), np.arange(levels - 1, dtype=np.float32) + np.float32(0.5), 0
    )
    sums = p.Arithmetic(np.ones(channels, np.float32), ())
    product = product_of(random, source, groups, channels, name, bits, sums)
    plain = p.Program((inside,), (outside,), (source,), (quantize, product))
    if kind == "sums":
        return plain
    reached = np.concatenate(
        [np.ravel(y) for y in reference.run(plain, [inputs_for(random, plain, 2)])]
    ).astype(np.int64)
    target_levels = int(random.choice([2, 3, 4, 7, 16, 17, 40, 256]))
    target = p.Tensor(height, width, channels, 0, 1, target_levels)
    changed = p.Product(
        0, 1, product.window, groups, bits, product.weights, product.values,
        epilogue_of(random, kind, reached, channels, target_levels),
    )  # fmt: skip
    shown = p.Dequantize(1, 0, np.arange(target_levels, dtype=np.float32))
    return p.Program((inside,), (outside,), (source, target), (quantize, changed, shown))


def epilogue_of(
    random: Random, kind: str, sums: np.ndarray, channels: int, levels: int
) -> p.Epilogue:
    low, high = int(sums.min()), int(sums.max())
    if kind == "affine":
        gain = levels / (high - low + 1)
        return p.Affine(
            (gain * random.choice([1, -1, 0.3], channels)).astype(np.float32),
            random.normal(levels / 2, levels, channels).astype(np.float32),
            0,
        )
    if kind == "affine on ties":
        gains = random.choice([0.5, -0.25], channels).astype(np.float32)
        return p.Affine(gains, np.zeros(channels, np.float32), int(random.integers(-1, levels)))
    if kind == "scaled":
        shifts = random.integers(0, 30, channels)
        slopes = random.choice([1, -1, 0.3, 0], channels) * levels / (high - low + 1)
        terms = np.ldexp(random.normal(levels / 2, levels, channels), shifts).astype(np.int64)
        late = random.integers(0, 256, -(-channels * levels // 8) * random.integers(2))
        return p.Scaled(
            *(np.ldexp(slopes, shifts).astype(np.int32), reference.split_words(terms)),
            *(shifts.astype(np.uint8), late.astype(np.uint8)),
        )
    if kind == "rounded":
        operations = random.permutation(np.repeat(list(p.Operation), 2))[: random.integers(3, 12)]
        operands = random.normal(0, 2, (len(operations), channels)).astype(np.float32)
        steps = tuple(p.Step(int(o), item) for o, item in zip(operations, operands, strict=True))
        scales = (random.choice([1, -1, 0.3], channels) * levels / (high - low + 1)).astype("f4")
        return p.Rounded(scales, steps, int(random.integers(-levels, levels)))
    directions = random.choice([-1, 1], channels).astype(np.int32)
    if kind == "thresholds on ties":
        # rint(sum / 8) with ties to even: every other threshold is one further.
        i = np.arange(levels - 1) - levels // 2
        first = random.choice(sums, channels)[:, None] // 16 * 16 * directions[:, None]
        rows = first + 8 * i + 4 + (i % 2 == 0)
    elif kind == "even thresholds":
        step = (high - low + 1) / levels
        first = random.choice(sums, channels)[:, None] * directions[:, None]
        rows = np.ceil(first + step * (np.arange(levels - 1) - levels / 2))
    elif kind == "thresholds near lines":
        # Some one off, some flat at their ends, and some channels on two lines.
        step = random.choice([0.5, 1, 2.5, (high - low + 1) / levels], channels)[:, None]
        i = np.arange(levels - 1) - random.integers(0, levels, channels)[:, None]
        bent = random.integers(5, size=channels)[:, None] == 0
        rows = np.ceil(step * np.where(bent & (i < 0), 3 * i, i))
        rows += random.choice(sums, channels)[:, None] * directions[:, None]
        rows += random.integers(-1, 2, rows.shape) * (random.random(rows.shape) < 0.1)
        ends = np.sort(random.integers(-levels, 2 * levels, (2, channels)), axis=0)[..., None]
        at = np.arange(levels - 1)
        rows = np.where(at < ends[0], -(2**31) if random.random() < 0.5 else rows.min() - 3, rows)
        rows = np.where(at >= ends[1], 2**31 - 1, rows)
    else:
        rows = random.choice(sums, (channels, levels - 1)) * directions[:, None]
        rows += random.integers(0, 2, rows.shape)
        rows[random.random(rows.shape) < 0.05] = 2**31 - 1
        rows[random.random(rows.shape) < 0.05] = -(2**31)
    return p.Thresholds(directions, np.sort(rows, axis=1).astype(np.int32).reshape(-1))


def inputs_for(random: Random, program: p.Program, rows: int) -> np.ndarray:
    tensor = program.tensors[0]
    shape = (rows, tensor.height, tensor.width, tensor.channels)
    x = random.integers(0, tensor.levels, shape)
    x[random.random(shape) < 0.2] = tensor.levels - 1
    return x.astype(np.float32)


def check(program: p.Program, x: np.ndarray, levels: list[str]) -> None:
    expected = reference.run(program, [x])[0]
    for level in levels:
        _core.set_isa(level)
        actual = Network(program).run([x])[0]
        np.testing.assert_array_equal(actual, expected, err_msg=level, strict=True)


@pytest.mark.parametrize("bits", range(1, 9))
def test_product_equals_reference_for_all_widths(bits: int, levels: list[str]) -> None:
    random = np.random.default_rng(bits)
    for activation_bits in range(1, 9):
        for _ in range(3):
            sizes = CHANNELS[random.integers(len(CHANNELS))]
            name = random.choice(list(WINDOWS))
            program = program_of(random, sizes, name, (bits, activation_bits), "sums")
            check(program, inputs_for(random, program, 2), levels)


@pytest.mark.parametrize("name", WINDOWS)
def test_product_equals_reference_for_windows(name: str, levels: list[str]) -> None:
    random = np.random.default_rng(len(name))
    for sizes in CHANNELS:
        for bits in (1, 2, 8):
            program = program_of(random, sizes, name, (bits, min(bits, 2)), "sums")
            check(program, inputs_for(random, program, 1), levels)


@pytest.mark.parametrize("inner", [1, 5, 16, 259])
def test_products_of_bytes_equal_reference(inner: int, levels: list[str]) -> None:
    """Compare single panels of 16 channels, pairs, and parts of more than 64 steps."""
    random = np.random.default_rng(inner)
    for item in (*range(1, 18), 31, 32, 33, 48, 64, 65, 96):
        for kind in ("sums", "affine"):
            name = str(random.choice(["plain", "plain", "strided"]))
            program = program_of(random, (1, inner, item), name, (8, 8), kind)
            check(program, inputs_for(random, program, 1), levels)


@pytest.mark.parametrize("name", WINDOWS)
def test_depthwise_product_equals_reference_for_wide_factors(name: str, levels: list[str]) -> None:
    """They leave 16 bits after one tap, a few, or none."""
    random = np.random.default_rng(len(name))
    for channels in (2, 16, 37, 64, 100):
        for widths in ((8, 8), (5, 8), (8, 4)):
            program = program_of(random, (channels, 1, 1), name, widths, "sums")
            check(program, inputs_for(random, program, 2), levels)


EPILOGUES = (
    *("thresholds", "even thresholds", "thresholds on ties", "thresholds near lines"),
    *("affine", "affine on ties", "rounded", "scaled"),
)


@pytest.mark.parametrize("kind", EPILOGUES)
def test_product_equals_reference_for_all_epilogues(kind: str, levels: list[str]) -> None:
    random = np.random.default_rng(len(kind))
    for widths in ((1, 1), (2, 2), (1, 2), (4, 4), (8, 8), (3, 5)):
        for sizes in CHANNELS:
            program = program_of(random, sizes, "ordinary", widths, kind)
            check(program, inputs_for(random, program, 2), levels)


@pytest.mark.parametrize("out_levels", [2, 3, 4])
def test_product_target_is_source_of_next(out_levels: int, levels: list[str]) -> None:
    random = np.random.default_rng(out_levels)
    for channels in (16, 40, 64, 100):
        first = program_of(random, (1, 64, channels), "ordinary", (1, 1), "thresholds")
        source, middle = first.tensors
        middle = p.Tensor(middle.height, middle.width, channels, -1, 1, out_levels)
        quantize, product, _ = first.instructions
        assert isinstance(product, p.Product)
        thresholds = np.sort(random.integers(-60, 60, (channels, out_levels - 1)), axis=1)
        epilogue = p.Thresholds(
            random.choice([-1, 1], channels).astype(np.int32),
            thresholds.astype(np.int32).reshape(-1),
        )
        product = p.Product(
            0, 1, product.window, 1, 1, product.weights, integers(-1, 1), epilogue
        )  # fmt: skip
        sums = p.Arithmetic(np.ones(48, np.float32), ())
        last = product_of(random, middle, 1, 48, "ordinary", 1, sums)
        last = p.Product(1, 0, last.window, 1, 1, last.weights, integers(-1, 1), sums)
        outside = p.Port(integers(7, 9, 48), 7, 9, 48, 0)
        program = p.Program(first.inputs, (outside,), (source, middle), (quantize, product, last))
        check(program, inputs_for(random, program, 3), levels)


def squares(
    random: Random, height: int, width: int, channels: tuple[int, int], weights: p.Integers
) -> p.Program:
    """Return a convolution of bytes with 3x3 windows, whose outputs are its sums."""
    inner, outer_channels = channels
    pads = random.integers(0, 3, 4)
    source = p.Tensor(height, width, inner, int(random.choice([0, -128, 3])), 1, 256)
    window = p.Window(3, 3, 1, 1, 1, 1, *pads.tolist())
    lines, columns = height + pads[0] + pads[2] - 2, width + pads[1] + pads[3] - 2
    steps = np.arange(255, dtype=np.float32) + np.float32(0.5)
    indices = random.integers(0, len(weights), (outer_channels * 9 * inner, 1))
    flags = (indices >> np.arange(8) & 1).astype(np.uint8)
    sums = p.Arithmetic(np.ones(outer_channels, np.float32), ())
    packed = np.packbits(flags.reshape(-1), bitorder="little")
    return p.Program(
        (p.Port(integers(height, width, inner), height, width, inner, 0),),
        (p.Port(integers(lines, columns, outer_channels), lines, columns, outer_channels, 0),),
        (source,),
        (
            p.Quantize(0, 0, integers(1), steps, 0),
            p.Product(0, 0, window, 1, 8, packed, weights, sums),
        ),
    )


def kernels_of(program: p.Program, levels: list[str]) -> dict[str, str]:
    """Return the kernel of the product of a program by level."""
    kernels = {}
    for level in levels:
        _core.set_isa(level)
        kernels[level] = str(Network(program).describe()["stages"][1]["kernel"])
    return kernels


BYTES = np.arange(-128, 128, dtype=np.int32)


FAR_WEIGHTS = {
    # values, source channels, kernel with AVX-512 VNNI
    "int3": (np.arange(8) - 4, 4107, "dot3"),
    "any of 3 bits": (np.array([-128, 127, 3, 0, -7, 90, 1, 64]), 4096, "dot3"),
    "bipolar": (np.array([-3, 3]), 4160, "dot1"),
    "padded bipolar": (np.array([-3, 3]), 4107, "dot2"),
    "binary": (np.array([0, 5]), 4160, "dot1"),
    "ternary": (np.array([-1, 0, 1, 0]), 4160, "dot2"),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("int3", "bipolar") else pytest.param(name, marks=pytest.mark.slow)
        for name in FAR_WEIGHTS
    ],
)
def test_rows_times_weights_beyond_the_caches_equal_reference(name: str, levels: list[str]) -> None:
    values, inner, kernel = FAR_WEIGHTS[name]
    random, channels = np.random.default_rng(1), 1033
    w = random.choice(values, (channels, inner))
    bits = int(np.log2(len(values)))
    indices = np.argmax(w.reshape(-1, 1) == values, axis=1)
    flags = (indices[:, None] >> np.arange(bits) & 1).astype(np.uint8)
    program = p.Program(
        (p.Port(integers(1, 1, inner), 1, 1, inner, 0),),
        (p.Port(integers(1, 1, channels), 1, 1, channels, 0),),
        (p.Tensor(1, 1, inner, 0, 1, 256),),
        (
            p.Quantize(0, 0, integers(1), np.arange(255, dtype=np.float32) + np.float32(0.5), 0),
            p.Product(
                *(0, 0, p.Window(*WINDOWS["plain"]), 1, bits),
                *(np.packbits(flags.reshape(-1), bitorder="little"), values.astype(np.int32)),
                p.Arithmetic(np.ones(channels, np.float32), ()),
            ),
        ),
    )
    kernels = kernels_of(program, sorted(set(levels) & {"avx512vnni"}))
    assert set(kernels.values()) <= {kernel}
    x = inputs_for(random, program, 19)
    expected = (x.reshape(19, -1).astype(np.float64) @ w.T).astype(np.float32)
    for level in levels:
        _core.set_isa(level)
        network = Network(program)
        for rows in (1, 5, 19):
            y = network.run([x[:rows]])[0]
            np.testing.assert_array_equal(y.reshape(rows, -1), expected[:rows], err_msg=level)


@pytest.mark.parametrize("height", range(4, 14))
def test_squares_of_winograd_equal_reference(height: int, levels: list[str]) -> None:
    """Compare sums of whole squares of 4x4 outputs and of parts of them."""
    random = np.random.default_rng(height)
    chosen = set()
    for width, channels in ((3, (64, 48)), (10, (33, 64)), (16, (65, 70)), (21, (32, 17))):
        program = squares(random, height, width, channels, BYTES)
        check(program, inputs_for(random, program, 2), levels)
        chosen |= set(kernels_of(program, sorted(set(levels) & {"avx2"})).values())
    assert chosen <= {"winograd", "wide8"}
    assert "winograd" in chosen or "avx2" not in levels


def test_winograd_needs_sums_of_26_bits(levels: list[str]) -> None:
    """Select it up to 114 channels, whose largest sum of 255 * 128 * 9 * 114 is below 2^25."""
    random = np.random.default_rng(0)
    few = sorted(set(levels) & {"baseline", "avx2", "avx512"})
    for inner in (114, 115):
        program = squares(random, 16, 16, (inner, 64), integers(*[-128] * 256))
        x = np.full_like(inputs_for(random, program, 1), 255)
        check(program, x, few)
        kernels = kernels_of(program, [level for level in few if level != "baseline"])
        assert all((kernel == "winograd") == (inner == 114) for kernel in kernels.values())


def test_product_equals_integers_for_long_sums(levels: list[str]) -> None:
    """Kernels divide 2^19 steps, and more, into parts."""
    size, pixels = 2**21 + 2**12, 18
    rng = np.random.default_rng(0)
    source = p.Tensor(1, 2, size, 0, 1, 5)
    copied = p.Tensor(1, pixels, size, 0, 1, 5)
    columns, channels = np.arange(pixels) % 2, np.arange(size)
    flags = rng.integers(0, 2, size).astype(np.uint8)
    program = p.Program(
        (p.Port(integers(1, 2, size), 1, 2, size, 0),),
        (p.Port(integers(1, pixels, 1), 1, pixels, 1, 0),),
        (source, copied),
        (
            p.Quantize(0, 0, integers(1), np.arange(4, dtype=np.float32) + np.float32(0.5), 0),
            p.Gather(0, 1, integers(0), columns.astype(np.int32), channels.astype(np.int32), 0, 0),
            p.Product(
                *(1, 0, p.Window(*WINDOWS["plain"]), 1, 1),
                *(np.packbits(flags, bitorder="little"), integers(-1, 2)),
                p.Arithmetic(np.ones(1, np.float32), ()),
            ),
        ),
    )
    codes = rng.integers(0, 5, (2, size), np.int8)
    sums = codes @ np.where(flags, 2, -1)
    for level in set(levels) & {"avx2"}:
        _core.set_isa(level)
        (y,) = Network(program).run([codes.astype(np.float32)[None, None]])
        np.testing.assert_array_equal(y.ravel(), sums[columns])
