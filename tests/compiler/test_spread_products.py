# SPDX-License-Identifier: Apache-2.0
"""Products of tensors with zeros between the elements: kernels compute them without the zeros."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from parallel_tasks import num_threads

from anybit.compiler.program import program as p
from anybit.compiler.program.encoding import pack_weights
from anybit.compiler.program.network import Network
from anybit.compiler.program.reference import run

JOINED = "with the product"


@dataclass(frozen=True)
class Axis:
    """Sizes and attributes of a ConvTranspose along one axis."""

    size: int
    taps: int
    stride: int = 1
    pad: int = 0
    pad_end: int = 0
    added: int = 0

    @property
    def result(self):
        return (self.size - 1) * self.stride + self.taps - self.pad - self.pad_end + self.added

    def lines(self):
        """Return the elements with zeros between them, and the padding of the product."""
        spread = (self.size - 1) * self.stride + 1
        start = self.taps - 1 - self.pad
        end = self.result + self.taps - 1 - spread - start
        line = np.arange(max(-start, 0), spread - max(-end, 0))
        elements = np.where(line % self.stride, -1, line // self.stride)
        return elements.astype(np.int32), max(start, 0), max(end, 0)


@dataclass(frozen=True)
class Case:
    """A transposed convolution as a Gather and a Product, perhaps with a damaged Gather."""

    high: Axis
    wide: Axis
    inputs: int
    outputs: int
    groups: int = 1
    lowest: int = 0
    levels: int = 256
    largest: int = 127

    def program(self, *, channels_first=1, levels=0, spread=None, steps=True):
        """Return a program whose output is floats, or codes if they have levels."""
        rng = np.random.default_rng(self.high.result * 100 + self.wide.result)
        (rows, top, bottom), (columns, left, right) = self.high.lines(), self.wide.lines()
        own = np.arange(self.inputs, dtype=np.int32)
        gather = p.Gather(0, 1, rows, columns, own, 0, -self.lowest)
        gather = replace(gather, **spread or {})
        shape = self.outputs, self.high.taps, self.wide.taps, self.inputs // self.groups
        weights = rng.integers(-self.largest, self.largest + 1, shape)
        bits, packed, values = pack_weights(weights)
        window = p.Window(self.high.taps, self.wide.taps, 1, 1, 1, 1, top, left, bottom, right)
        scales = rng.normal(size=self.outputs).astype(np.float32)
        sizes = self.high.result, self.wide.result
        codes = (self.lowest, 1, self.levels)
        tensors = [
            p.Tensor(self.high.size, self.wide.size, self.inputs, *codes),
            p.Tensor(len(gather.rows), len(gather.columns), self.inputs, *codes),
        ]
        thresholds = np.arange(self.levels - 1, dtype=np.float32) + np.float32(0.5)
        instructions = [p.Quantize(0, 0, np.int32([1]), thresholds, 0), gather]
        order = (self.outputs, *sizes) if channels_first else (*sizes, self.outputs)
        output = p.Port(np.int32(order), *sizes, self.outputs, channels_first)
        if levels:
            tensors.append(p.Tensor(*sizes, self.outputs, 0, 1, levels))
            epilogue = p.Affine(scales / 100, scales, 0)
            floats = np.arange(levels, dtype=np.float32)
            more = [p.Dequantize(2, 0, floats)]
        else:
            bias = rng.normal(size=self.outputs).astype(np.float32)
            epilogue = p.Arithmetic(scales, (p.Step(p.Operation.ADD, bias),) if steps else ())
            more = []
        target = 2 if levels else 0
        product = p.Product(1, target, window, self.groups, bits, packed, values, epilogue)
        sizes_in = np.int32([self.high.size, self.wide.size, self.inputs])
        port = p.Port(sizes_in, *sizes_in.tolist(), 0)
        return p.Program((port,), (output,), tuple(tensors), (*instructions, product, *more))


def check(program, count=3):
    """Compare with the reference, with one thread and with several; return the kernels."""
    rng = np.random.default_rng(0)
    (port,) = program.inputs
    x = rng.integers(0, program.tensors[0].levels, (count, *port.sizes)).astype(np.float32)
    (expected,) = run(program, [x])
    network = Network(program)
    for threads in (1, 3):
        with num_threads(threads):
            (actual,) = network.run([x])
        assert actual.tobytes() == expected.tobytes()
    return [stage["kernel"] for stage in network.describe()["stages"]]


AXES = {
    "2 of 2": Axis(5, 2, 2),
    "3 of 3": Axis(4, 3, 3),
    "4 of 4": Axis(3, 4, 4),
    "4 of 2": Axis(6, 4, 2, 1, 1),
    "3 of 2": Axis(5, 3, 2, 1, 1, 1),
    "2 of 3": Axis(4, 2, 3),
    "5 of 2, more after": Axis(5, 5, 2, 0, 3, 1),
    "3 of 2, cropped": Axis(6, 3, 2, 3, 4),
    "1": Axis(1, 1),
    "3": Axis(7, 3, 1, 1, 1),
}


@pytest.mark.parametrize("channels_first", [0, 1])
@pytest.mark.parametrize("outputs", [1, 3, 40])
@pytest.mark.parametrize("wide", ["2 of 2", "3 of 3", "4 of 2", "5 of 2, more after", "3"])
@pytest.mark.parametrize("high", AXES)
@pytest.mark.usefixtures("level")
def test_floats_equal_reference(high, wide, outputs, channels_first):
    case = Case(AXES[high], AXES[wide], 8, outputs)
    kernels = check(case.program(channels_first=channels_first))
    assert (kernels[1] == JOINED) == (max(case.high.stride, case.wide.stride) > 1)


@pytest.mark.parametrize("levels", [2, 4, 256])
@pytest.mark.parametrize(("outputs", "groups"), [(3, 1), (70, 1), (4, 2), (8, 8)])
@pytest.mark.parametrize("high", AXES)
@pytest.mark.usefixtures("level")
def test_codes_equal_reference(high, outputs, groups, levels):
    case = Case(AXES[high], AXES["4 of 2"], 8, outputs, groups)
    assert check(case.program(levels=levels))[1] == JOINED


@pytest.mark.parametrize("largest", [1, 7])
@pytest.mark.parametrize(("lowest", "levels"), [(0, 2), (-1, 2), (0, 4), (-8, 16), (-128, 256)])
@pytest.mark.parametrize("wide", ["2 of 2", "3 of 2"])
@pytest.mark.usefixtures("level")
def test_all_codes_of_inputs_equal_reference(wide, lowest, levels, largest):
    case = Case(AXES["3 of 2"], AXES[wide], 70, 33, 1, lowest, levels, largest)
    assert check(case.program())[1] == JOINED
    assert check(case.program(levels=4))[1] == JOINED


@pytest.mark.parametrize("levels", [0, 16])
@pytest.mark.parametrize("taps", [2, 4])
@pytest.mark.usefixtures("level")
def test_large_images_equal_reference(taps, levels):
    """Split the work for several threads, and the lines into blocks."""
    axis = Axis(60, taps, 2, (taps - 1) // 2, (taps - 1) // 2)
    for channels_first in (0, 1):
        case = Case(axis, axis, 16, 20)
        assert check(case.program(channels_first=channels_first, levels=levels), 2)[1] == JOINED


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.usefixtures("level")
def test_steps_with_arrays_equal_reference(groups):
    """Add a residual after the product: each output reads its own number."""
    case = Case(AXES["4 of 4"], AXES["4 of 4"], 8, 24, groups)
    program = case.program(channels_first=0)
    sizes = program.outputs[0].sizes
    residual = p.Port(sizes, *sizes.tolist(), 0)
    quantize, gather, product = program.instructions
    program = replace(
        program,
        inputs=(*program.inputs, residual),
        floats=(p.FloatTensor(*sizes.tolist()),),
        instructions=(
            quantize,
            gather,
            product,
            p.Elementwise(2, 1, 1, p.Operation.ADD, ()),
        ),
    )
    rng = np.random.default_rng(1)
    inputs = [rng.normal(size=(2, *port.sizes)).astype(np.float32) * 99 for port in program.inputs]
    network = Network(program)
    (actual,), (expected,) = network.run(inputs), run(program, inputs)
    assert actual.tobytes() == expected.tobytes()
    kernels = [stage["kernel"] for stage in network.describe()["stages"]]
    assert kernels[1] == kernels[3] == JOINED


@pytest.mark.parametrize(
    "spread",
    [
        {"channels": np.int32([1, 0, 2, 3, 4, 5, 6, 7])},
        {"columns": np.int32([0, -1, 1, -1, 2, -1, 2, -1, 4, -1, 5])},
        {"columns": np.int32([0, -1, -1, -1, 2, -1, 3, -1, 4, -1, 5])},
        {"columns": np.int32([-1, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5])},
        {"columns": np.int32([-1] * 11)},
        {"rows": np.int32([5, -1, 4, -1, 3, -1, 2, -1, 1, -1, 0])},
        {"rows": np.int32([0, -1, 1, -1, 2, -1, 3, -1, -1, -1, -1])},
        {"fill": 1},
    ],
)
@pytest.mark.usefixtures("level")
def test_other_gathers_stay(spread):
    case = Case(AXES["4 of 2"], AXES["4 of 2"], 8, 3)
    assert JOINED not in check(case.program(spread=spread))
