# SPDX-License-Identifier: Apache-2.0
"""Programs on the kernels of this machine equal the reference, bit for bit."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import programs as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anybit._native import _core
from anybit.compiler.program import encoding, reference, versions
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network


def same(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_records_equal_native_declarations():
    native = _core.program
    assert native["version"] == versions.VERSION
    assert native["most_levels"] == p.MOST_LEVELS
    assert native["instructions"] == [item.__name__ for item in p.INSTRUCTIONS]
    assert native["epilogues"] == [item.__name__ for item in p.EPILOGUES]
    assert native["operations"] == [item.name for item in sorted(p.Operation)]
    parts = [p.Program, p.Port, p.Tensor, p.FloatTensor, p.Window, p.Step]
    records = [*p.INSTRUCTIONS, *p.EPILOGUES, *parts]
    layouts = {item.__name__: encoding.list_fields(item) for item in records}
    assert native["layouts"] == layouts


@given(made.programs(), st.sampled_from([0, 1, 2, 5]), st.integers(0, 2**31))
@settings(max_examples=150, deadline=None)
def test_network_equals_reference_on_random_programs(program, rows, seed):
    inputs = made.inputs_for(program, rows, seed)
    same(Network(program).run(inputs), reference.run(program, inputs))


@pytest.mark.parametrize("seed", range(40))
def test_network_equals_reference_on_all_isa_levels(level, seed):
    program = made.make_program(made.FromGenerator(np.random.default_rng(seed)))
    inputs = made.inputs_for(program, 3, seed)
    same(Network(program).run(inputs), reference.run(program, inputs))


@pytest.mark.parametrize("levels", [200, 256])
def test_lookup_covers_all_indices(level, levels):
    rng = np.random.default_rng(levels)
    for channels in (1, 63, 64, 65, 300):
        port = p.Port(np.int32([3, channels]), 1, 3, channels, 0)
        tensor = p.Tensor(1, 3, channels, 0, 1, levels)
        other = p.Tensor(1, 3, channels, 0, 1, 256)
        middles = np.arange(levels - 1, dtype=np.float32) + np.float32(0.5)
        instructions = (
            p.Quantize(0, 0, np.int32([1]), middles, 0),
            p.Lookup(0, 1, rng.permutation(256)[:levels].astype(np.uint8)),
            p.Dequantize(1, 0, np.arange(256, dtype=np.float32)),
        )
        program = p.Program((port,), (port,), (tensor, other), instructions)
        x = rng.permuted(np.arange(levels).repeat(3 * channels)).astype(np.float32)
        inputs = [x.reshape(levels, 3, channels)]
        same(Network(program).run(inputs), reference.run(program, inputs))


@pytest.mark.parametrize("levels", [200, 256])
@pytest.mark.parametrize("tables", [1, 2, 7, 16, 17])
def test_lookup_by_channel_covers_all_indices(level, tables, levels):
    rng = np.random.default_rng(levels)
    for channels in (2, 17, 24, 63, 64, 65, 128, 300, 1003):
        port = p.Port(np.int32([3, channels]), 1, 3, channels, 0)
        tensor = p.Tensor(1, 3, channels, 0, 1, levels)
        other = p.Tensor(1, 3, channels, 0, 1, 256)
        middles = np.arange(levels - 1, dtype=np.float32) + np.float32(0.5)
        distinct = rng.integers(0, 256, (tables, levels)).astype(np.uint8)
        entries = distinct[rng.integers(0, tables, channels)]
        instructions = (
            p.Quantize(0, 0, np.int32([1]), middles, 0),
            p.Lookup(0, 1, entries.ravel()),
            p.Dequantize(1, 0, np.arange(256, dtype=np.float32)),
        )
        program = p.Program((port,), (port,), (tensor, other), instructions)
        x = rng.permuted(np.arange(levels).repeat(3 * channels)).astype(np.float32)
        inputs = [x.reshape(levels, 3, channels)]
        same(Network(program).run(inputs), reference.run(program, inputs))


@pytest.mark.parametrize("column", [0, 1, -1])
def test_gather_repeats_pixel(level, column):
    rng = np.random.default_rng(0)
    for width, channels, first in ((1, 8, 0), (2, 33, 0), (7, 5, 0), (96, 8, 0), (5, 32, 32)):
        inside = p.Port(np.int32([2, 2, channels]), 2, 2, channels, 0)
        outside = p.Port(np.int32([3, width, first + channels]), 3, width, first + channels, 0)
        tensor = p.Tensor(2, 2, channels, 0, 1, 256)
        target = p.Tensor(3, width, first + channels, 0, 1, 256)
        middles = np.arange(255, dtype=np.float32) + np.float32(0.5)
        lines, columns = np.int32([1, -1, 0]), np.full(width, column, np.int32)
        parts = [(0, channels)] if not first else [(0, first), (first, channels)]
        gathers = [
            p.Gather(0, 1, lines, columns, np.arange(count, dtype=np.int32), at, 7)
            for at, count in parts
        ]
        values = np.arange(256, dtype=np.float32)
        instructions = (p.Quantize(0, 0, np.int32([1]), middles, 0), *gathers)
        program = p.Program(
            (inside,), (outside,), (tensor, target), (*instructions, p.Dequantize(1, 0, values))
        )
        inputs = [rng.integers(0, 256, (3, 2, 2, channels)).astype(np.float32)]
        same(Network(program).run(inputs), reference.run(program, inputs))


def on_codes(sizes, target_sizes, *instructions):
    """Return a program of instructions on bytes, from tensor 0 to tensor 1."""
    ports = [p.Port(np.int32(at), *at, 0) for at in (sizes, target_sizes)]
    tensors = tuple(p.Tensor(*at, 0, 1, 256) for at in (sizes, target_sizes))
    middles = np.arange(255, dtype=np.float32) + np.float32(0.5)
    steps = (
        p.Quantize(0, 0, np.int32([1]), middles, 0),
        *instructions,
        p.Dequantize(1, 0, np.arange(256, dtype=np.float32)),
    )
    return p.Program((ports[0],), (ports[1],), tensors, steps)


@pytest.mark.parametrize("channels", [15, 16, 17, 31, 48, 100, 300])
def test_gather_permutes_channels(level, channels):
    rng = np.random.default_rng(channels)
    for taken in (1, 15, 16, 17, 33, channels, 2 * channels):
        rows, columns = rng.integers(-1, 4, 3), rng.integers(0, 5, 7)
        chosen = rng.integers(0, channels, taken)
        parts = [(0, chosen)] if taken < 33 else [(0, chosen[:13]), (13, chosen[13:])]
        gathers = [
            p.Gather(0, 1, *map(np.int32, (rows, columns, part)), first, 9) for first, part in parts
        ]
        program = on_codes((4, 5, channels), (3, 7, taken), *gathers)
        inputs = [rng.integers(0, 256, (2, 4, 5, channels)).astype(np.float32)]
        same(Network(program).run(inputs), reference.run(program, inputs))


@pytest.mark.parametrize("channels", [1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 65])
def test_max_pool_of_bytes(level, channels):
    rng = np.random.default_rng(channels)
    for kernel, stride, pad in ((2, 2, 0), (3, 2, 1), (3, 1, 1)):
        size = (9 + 2 * pad - kernel) // stride + 1
        window = p.Window(kernel, kernel, stride, stride, 1, 1, pad, pad, pad, pad)
        program = on_codes((9, 9, channels), (size, size, channels), p.MaxPool(0, 1, window))
        inputs = [rng.integers(0, 256, (2, 9, 9, channels)).astype(np.float32)]
        same(Network(program).run(inputs), reference.run(program, inputs))


@pytest.mark.parametrize("sizes", [(3, 5, 7), (96, 10, 10), (70, 33, 5), (300, 7, 9), (1025, 2, 3)])
@pytest.mark.parametrize("first", [0, 1])
def test_elementwise_with_channels_first(level, sizes, first):
    rng = np.random.default_rng(0)
    channels, height, width = sizes
    outside = p.Port(np.int32(sizes), height, width, channels, 1)
    shape = sizes if first else (height, width, channels)
    inside = p.Port(np.int32(shape), height, width, channels, first)
    steps = (
        p.Step(p.Operation.MULTIPLY, rng.normal(size=channels).astype(np.float32)),
        p.Step(p.Operation.ADD, np.float32([0.5])),
    )
    sums = p.Elementwise(0, 1, 0, p.Operation.ADD, steps)
    program = p.Program((inside, inside), (outside,), (), (sums,))
    inputs = [rng.normal(size=(2, *shape)).astype(np.float32) for _ in range(2)]
    same(Network(program).run(inputs), reference.run(program, inputs))


def layers(width, depth, seed=0, bits=4, levels=16, values=None):
    """Return a chain of matrix products between tensors of that many codes."""
    rng = np.random.default_rng(seed)
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    thresholds = np.sort(rng.normal(0, 2, levels - 1)).astype(np.float32)
    instructions = [p.Quantize(0, 0, np.int32([1]), thresholds, 0)]
    for i in range(depth):
        indices = rng.integers(0, len(values or range(2**bits)), width * width).astype(np.uint8)
        flags = (indices[:, None] >> np.arange(bits)) & 1
        packed = np.packbits(flags.ravel(), bitorder="little")
        own = np.int32(values or range(-(2 ** (bits - 1)), 2 ** (bits - 1)))
        steps = np.sort(rng.normal(0, width, (width, levels - 1))).round().astype(np.int32)
        epilogue = p.Thresholds(np.ones(width, np.int32), steps.ravel())
        instructions.append(p.Product(i, i + 1, window, 1, bits, packed, own, epilogue))
    tensors = tuple(p.Tensor(1, 1, width, 0, 1, levels) for _ in range(depth + 1))
    instructions.append(p.Dequantize(depth, 0, np.arange(levels, dtype=np.float32)))
    port = p.Port(np.int32([width]), 1, 1, width, 0)
    return p.Program((port,), (port,), tensors, tuple(instructions))


@pytest.mark.parametrize("rows", [0, 1, 127, 128, 129, 700])
def test_network_equals_reference_for_all_batch_sizes(rows):
    program = layers(33, 3)
    x = np.random.default_rng(1).normal(0, 2, (rows, 33)).astype(np.float32)
    same(Network(program).run([x]), reference.run(program, [x]))


@pytest.mark.parametrize("rows", [1, 15, 16, 33, 64, 131])
@pytest.mark.parametrize("levels", [2, 3, 4])
@pytest.mark.parametrize("values", [(-1, 1), (-1, 0, 1), (0, 1, -2, -1)])
def test_network_equals_reference_for_batches_of_few_bits(rows, levels, values):
    """Use numbers of rows for all kernels, and channels that do not fill words."""
    program = layers(305, 2, bits=1 if len(values) == 2 else 2, levels=levels, values=values)
    x = np.random.default_rng(1).normal(0, 2, (rows, 305)).astype(np.float32)
    same(Network(program).run([x]), reference.run(program, [x]))


@pytest.mark.parametrize(
    ("width", "depth", "rows", "counts"),
    [
        *((300, 3, rows, (1, 2, 3, 5)) for rows in (1, 3, 200)),
        # Calls that begin with the last of many weights, in whole blocks or not.
        *((1100, 1, rows, (1, 1, 1, 2, 2, 2)) for rows in (1, 3, 33)),
    ],
)
def test_network_is_independent_of_number_of_threads(width, depth, rows, counts, set_threads):
    program = layers(width, depth)
    x = np.random.default_rng(1).normal(0, 2, (rows, width)).astype(np.float32)
    network, expected = Network(program), reference.run(program, [x])
    for count in counts:
        set_threads(count)
        for _ in range(5 if depth > 1 else 1):
            same(network.run([x]), expected)


def test_network_runs_in_several_threads():
    program = layers(130, 2)
    network = Network(program)
    xs = [np.random.default_rng(i).normal(0, 2, (9, 130)).astype(np.float32) for i in range(8)]
    ready = threading.Barrier(4)

    def work(start):
        ready.wait()
        for _ in range(10):
            for x in xs[start:]:
                yield network.run([x])[0], x

    with ThreadPoolExecutor(4) as pool:
        for results in pool.map(lambda start: list(work(start)), range(4)):
            for y, x in results:
                same([y], reference.run(program, [x]))


def test_network_describes_kernels():
    network = Network(layers(64, 2))
    described = network.describe()
    assert [item["instruction"] for item in described["stages"]] == [
        *("Quantize", "Product", "Product", "Dequantize"),
    ]
    assert described["stages"][1]["multiplications"] == 64 * 64
    assert described["memory"] > 0
    assert described["rows_together"] > 1


def test_network_times_instructions():
    network = Network(layers(64, 2))
    x = np.zeros((5, 64), np.float32)
    outputs, seconds = network.run_timed([x])
    same(outputs, network.run([x]))
    assert len(seconds) == 4
    assert all(item > 0 for item in seconds)


def test_network_takes_any_memory_order():
    program = layers(64, 1)
    x = np.random.default_rng(1).normal(0, 2, (64, 10)).astype(np.float32)
    for item in (x.T, x.T[::2], x.T.astype(">f4")):
        same(Network(program).run([item]), reference.run(program, [item]))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([np.zeros((2, 63), np.float32)], r"shape \(n, 64\), got \(2, 63\)"),
        ([np.zeros(64, np.float32)], r"shape \(n, 64\), got \(64\)"),
        ([np.zeros((2, 64))], "must be float32, got float64"),
        ([], "a list of 1 arrays, got 0"),
        (np.zeros((1, 64), np.float32), "a list of 1 arrays"),
        ([[1, 2]], "must be a NumPy array"),
    ],
)
def test_network_refuses_other_shapes(inputs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        Network(layers(64, 1)).run(inputs)


def requested(*arguments, **named):
    return {"asked": (arguments, named)}


def test_named_call_returns_output_by_name():
    program = layers(64, 1)
    run = Network(program).named("y", requested)
    x = np.random.default_rng(1).normal(0, 2, (64, 10)).astype(np.float32)
    tagged = np.dtype("f4", metadata={"of": "somebody"})
    shifted = np.frombuffer(b"_" + x.T.tobytes(), np.uint8)[1:].view(np.float32).reshape(10, 64)
    arrays = (x.T, np.ascontiguousarray(x.T), x.T.astype(">f4"), x.T[:0], x.T.astype(tagged))
    for item in (*arrays, shifted):
        (output,) = run(item).values()
        np.testing.assert_array_equal(output, *reference.run(program, [item]), strict=True)
        assert output.flags.owndata
        assert output.flags.writeable
    assert list(run(x.T)) == ["y"]


@pytest.mark.parametrize(
    "array",
    [
        [np.zeros((1, 64), np.float32)],
        np.zeros((1, 64), np.float32).data,
        np.zeros((1, 64)),
        np.zeros((1, 63), np.float32),
        np.zeros(64, np.float32),
        np.array(1, np.float32),
        {"x": 1},
    ],
)
def test_named_call_falls_back(array):
    run = Network(layers(64, 1)).named("y", requested)
    ((output,), named) = run(array)["asked"]
    assert output is array
    assert named == {}


def test_named_call_passes_arguments_on():
    network, x = Network(layers(64, 1)), np.zeros((1, 64), np.float32)
    run = network.named("y", requested)
    assert run()["asked"] == ((), {})
    assert run(inputs=1, progress=2)["asked"] == ((), {"inputs": 1, "progress": 2})
    assert run(x, progress=3)["asked"][1] == {"progress": 3}
    assert run(1, 2)["asked"] == ((1, 2), {})
    with pytest.raises(ZeroDivisionError):
        network.named("y", lambda x: 1 / 0)(1)
    for arguments in ((network._native, "y"), (1, "y", requested)):
        with pytest.raises(TypeError, match="takes a network of one input"):
            _core.Call(*arguments)


def test_quantize_refuses_nan_or_gives_index():
    program = layers(64, 1)
    quantize = program.instructions[0]
    x = np.zeros((3, 64), np.float32)
    x[1, 5] = np.nan
    same(Network(program).run([x]), reference.run(program, [x]))
    refusing = p.Quantize(0, 0, quantize.directions, quantize.thresholds, -1)
    program = p.Program(
        program.inputs,
        program.outputs,
        program.tensors,
        (refusing, *program.instructions[1:]),
    )
    with pytest.raises(ValueError, match="has NaN"):
        Network(program).run([x])
