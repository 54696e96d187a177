# SPDX-License-Identifier: Apache-2.0
"""Elementwise instructions after a product: one kernel computes both, with the same bits."""

import numpy as np
import pytest

from anybit.compiler.program import program as p
from anybit.compiler.program.encoding import pack_weights
from anybit.compiler.program.network import Network
from anybit.compiler.program.reference import run

ADD, SUBTRACT_FROM, MULTIPLY = (
    p.Operation.ADD,
    p.Operation.SUBTRACT_FROM,
    p.Operation.MULTIPLY,
)
KEEP, SIGMOID, MULTIPLY_KEPT = (
    p.Operation.KEEP,
    p.Operation.SIGMOID,
    p.Operation.MULTIPLY_KEPT,
)
ONES = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
DEPTH = 37
FUSED = "with the product"


def floats(*numbers):
    return np.float32(numbers)


def make_port(height, width, channels, channels_first=0):
    sizes = (channels, height, width) if channels_first else (height, width, channels)
    return p.Port(np.int32(sizes), height, width, channels, channels_first)


class Chain:
    """A product with scales from data, and instructions after it that end in an output."""

    def __init__(self, height, width, channels, inputs=(), *, channels_first=0):
        self.sizes = height, width, channels
        self.rng = np.random.default_rng(height * width + channels)
        self.inputs = (make_port(height, width, DEPTH), *inputs)
        self.outputs = [make_port(*self.sizes, channels_first)]
        self.floats = [p.FloatTensor(height, width, 1)]
        self.instructions = [
            p.DynamicScale(0, 0, 0, floats(127), floats(2.0**-116), floats(2.6e36)),
            p.DynamicQuantize(0, len(self.inputs), -1, 0, 0),
        ]

    def constants(self, count=None):
        return self.rng.normal(size=count or self.sizes[2]).astype(np.float32)

    def make_product(self, target):
        weights = self.rng.integers(-127, 128, (self.sizes[2], 1, 1, DEPTH))
        bits, packed, values = pack_weights(weights)
        steps = (p.Step(ADD, self.constants()),)
        epilogue = p.Arithmetic(self.constants() * np.float32(1e-3), steps)
        self.instructions.append(p.Product(0, target, ONES, 1, bits, packed, values, epilogue))

    def add_floats(self):
        self.floats.append(p.FloatTensor(*self.sizes))
        return len(self.floats) - 1

    def source_of(self, target):
        """Return the number of a target among the sources."""
        return len(self.inputs) + target

    def output(self, number=0):
        """Return the number of an output among the targets, after all floats were added."""
        return len(self.floats) + number

    def program(self):
        height, width, _ = self.sizes
        tensor = p.Tensor(height, width, DEPTH, -128, 1, 256)
        return p.Program(
            self.inputs,
            tuple(self.outputs),
            (tensor,),
            tuple(self.instructions),
            tuple(self.floats),
        )


def make_chain(height, width, channels, *, channels_first=0):
    """Return a product, the scales of its rows, a bias, a residual, SiLU, a constant and GELU."""
    inputs = make_port(height, width, channels), make_port(height, width, 1)
    chain = Chain(height, width, channels, inputs, channels_first=channels_first)
    product, scaled, added = (chain.add_floats() for _ in range(3))
    chain.make_product(product)
    source = chain.source_of
    steps = p.Step(MULTIPLY, chain.constants()), p.Step(ADD, chain.constants(1))
    silu = p.Step(KEEP, floats(0)), p.Step(SIGMOID, floats(0)), p.Step(MULTIPLY_KEPT, floats(0))
    gelu = p.Step(p.Operation.GELU, floats(0))
    chain.instructions += [
        p.Elementwise(source(product), source(0), scaled, MULTIPLY, steps),
        p.Elementwise(source(scaled), 1, added, SUBTRACT_FROM, silu),
        p.Elementwise(source(added), 2, chain.output(), MULTIPLY, (steps[0], gelu)),
    ]
    return chain.program()


def make_inputs(program, count):
    rng = np.random.default_rng(count)
    arrays = [rng.normal(size=(count, *port.sizes)).astype(np.float32) for port in program.inputs]
    if count > 4:
        arrays[0][2] = np.nan
        arrays[1][1, ..., 0] = np.inf
        arrays[1][3] = -np.float32(1e38)
        arrays[0][4] = 0
        for scales in arrays[2:]:
            scales[4] = -np.float32(0)
    return arrays


def assert_equals_reference(program, count):
    inputs = make_inputs(program, count)
    network = Network(program)
    for actual, expected in zip(network.run(inputs), run(program, inputs), strict=True):
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(actual), nan)
        assert actual[~nan].tobytes() == expected[~nan].tobytes()
    return [stage["kernel"] for stage in network.describe()["stages"]].count(FUSED)


@pytest.mark.parametrize("count", [0, 1, 3, 7, 9, 130])
@pytest.mark.parametrize("channels", [1, 16, 64, 150])
@pytest.mark.usefixtures("level")
def test_chains_equal_reference(channels, count):
    assert assert_equals_reference(make_chain(1, 1, channels), count) == 3


@pytest.mark.parametrize("channels_first", [0, 1])
@pytest.mark.parametrize("size", [(3, 4), (1, 45), (7, 1)])
@pytest.mark.usefixtures("level")
def test_chains_of_several_pixels_equal_reference(size, channels_first):
    program = make_chain(*size, 70, channels_first=channels_first)
    assert assert_equals_reference(program, 6) == 3


@pytest.mark.parametrize("channels", range(1, 34))
@pytest.mark.usefixtures("level")
def test_chains_equal_reference_for_all_numbers_of_channels_in_a_register(channels):
    """Compare 37 pixels: a block of kernels, and one more."""
    assert assert_equals_reference(make_chain(1, 37, channels), 2) == 3


@pytest.mark.parametrize("case", ["channels", "pixel", "twice", "squared", "kept", "five"])
@pytest.mark.usefixtures("level")
def test_instructions_that_a_product_cannot_compute_stay(case):
    """Keep stages for other layouts, other readers, and too many arrays."""
    height, width, channels = 2, 3, 20
    port = make_port(height, width, channels, int(case == "channels"))
    if case == "pixel":
        port = make_port(1, 1, channels)
    chain = Chain(height, width, channels, (port,))
    product, last = chain.add_floats(), chain.add_floats()
    more = [chain.add_floats() for _ in range(4)] if case == "five" else []
    chain.make_product(product)
    source = chain.source_of
    second = source(product) if case == "squared" else 1
    steps = (p.Step(MULTIPLY_KEPT, floats(0)),) if case == "kept" else ()
    chain.instructions.append(p.Elementwise(source(product), second, last, ADD, steps))
    for target in more:
        chain.instructions.append(p.Elementwise(source(last), 1, target, ADD, ()))
        last = target
    other = source(product) if case == "twice" else 1
    chain.instructions.append(p.Elementwise(source(last), other, chain.output(), ADD, ()))
    fused = assert_equals_reference(chain.program(), 5)
    assert fused == {"five": 4, "twice": 0}.get(case, 0)


@pytest.mark.usefixtures("level")
def test_two_products_do_not_share_the_memory_of_their_results():
    """Read the codes for a second product after the first one has stored its results."""
    chain = Chain(1, 1, 90, (make_port(1, 1, 90),))
    first, scaled, second = (chain.add_floats() for _ in range(3))
    source = chain.source_of
    chain.make_product(first)
    chain.instructions.append(p.Elementwise(source(first), source(0), scaled, MULTIPLY, ()))
    chain.make_product(second)
    chain.instructions.append(
        p.Elementwise(source(second), source(scaled), chain.output(), ADD, ())
    )
    assert assert_equals_reference(chain.program(), 200) == 2
