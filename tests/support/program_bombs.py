# SPDX-License-Identifier: Apache-2.0
"""Small programs that ask for much: each is refused, or ready in time that its size explains."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from anybit.compiler.program import program as p

Instructions = tuple[p.Instruction, ...]


def port(height: int, width: int, channels: int) -> p.Port:
    return p.Port(np.int32([height, width, channels]), height, width, channels, 0)


def with_codes(
    height: int, width: int, channels: int, lowest: int = 0, levels: int = 4
) -> p.Tensor:
    return p.Tensor(height, width, channels, lowest, 1, levels)


def quantized(levels: int = 4) -> p.Quantize:
    return p.Quantize(0, 0, np.int32([1]), np.arange(levels - 1, dtype=np.float32), 0)


def written(tensor: int, levels: int = 4) -> p.Dequantize:
    return p.Dequantize(tensor, 0, np.arange(levels, dtype=np.float32))


def chain(tensors: list[p.Tensor], instructions: list[p.Instruction]) -> p.Program:
    """Between a quantizer and the floats that its codes stand for."""
    first, last = tensors[0], tensors[-1]
    return p.Program(
        (port(first.height, first.width, first.channels),),
        (port(last.height, last.width, last.channels),),
        tuple(tensors),
        (
            quantized(first.levels),
            *instructions,
            written(len(tensors) - 1, last.levels),
        ),
    )


def product(source: int, window: p.Window, weights: int, channels: int) -> p.Product:
    """Make a product with weights 0 and 1, in one bit."""
    bits = np.full(-(-weights // 8), 0b0110, np.uint8)
    epilogue = p.Thresholds(np.ones(channels, np.int32), np.tile(np.int32([1, 2, 3]), channels))
    return p.Product(source, source + 1, window, 1, 1, bits, np.int32([0, 1]), epilogue)


def wide_kernel(side: int) -> p.Program:
    """Make a program in which every window at the border has its own taps."""
    window = p.Window(side, side, 1, 1, 1, 1, *[side // 2 - 1] * 2, *[side // 2] * 2)
    tensors = [with_codes(side, side, 1, lowest=1), with_codes(side, side, 1)]
    return chain(tensors, [product(0, window, side * side, 1)])


def shared_weights(count: int) -> p.Program:
    """Products of one store, packed each."""
    width = 3000
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    products = [product(i, window, width * width, width) for i in range(count)]
    return chain([with_codes(1, 1, width)] * (count + 1), products)


def gaps_between_taps(side: int) -> p.Program:
    """Make a program in which each weight, of one bit, begins a row of a matrix."""
    window = p.Window(side, side, 1, 1, 2, 2, 0, 0, 0, 0)
    sources = with_codes(2 * side - 1, 2 * side - 1, 1, levels=16)
    return chain([sources, with_codes(1, 1, 1)], [product(0, window, side * side, 1)])


def many_gathers(count: int) -> p.Program:
    """Make gathers that fill one channel each of very many; some are never filled."""
    zero = np.zeros(1, np.int32)
    gathers = [p.Gather(0, 1, zero, zero, zero, i, 0) for i in range(count)]
    return chain([with_codes(1, 1, 1), with_codes(1, 1, 1 << 23)], gathers)


def many_gathered(count: int) -> p.Program:
    """Make tensors with very many channels, only one of them filled."""
    zero = np.zeros(1, np.int32)
    gathers = [p.Gather(0, i + 1, zero, zero, zero, 0, 0) for i in range(count)]
    return chain([with_codes(1, 1, 1)] + [with_codes(1, 1, 1 << 23)] * count, gathers)


def long_chain(count: int) -> p.Program:
    """Make a chain of copies, in which every tensor needs a place in memory."""
    copies = [p.Reshape(i, i + 1, 0, 0) for i in range(count)]
    return chain([with_codes(1, 1, 8)] * (count + 1), copies)


def long_pools(count: int) -> p.Program:
    """Poolings of single elements along a line."""
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    pools = [p.MaxPool(i, i + 1, window) for i in range(count)]
    return chain([with_codes(1, 1 << 22, 1)] * (count + 1), pools)


def long_products(count: int) -> p.Program:
    """Return a program of many products that store data for every window."""
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    products = [product(i, window, 1, 1) for i in range(count)]
    return chain([with_codes(1, 1 << 22, 1)] * (count + 1), products)


def many_directions(channels: int) -> p.Program:
    """Make thresholds that channels share in both directions."""
    program = chain([with_codes(1, 1, channels, levels=256)], [])
    first, *rest = program.instructions
    assert isinstance(first, p.Quantize)
    ways = np.where(np.arange(channels) % 2 == 0, 1, -1).astype(np.int32)
    stairs = np.sort(np.random.default_rng(0).normal(0, 1, 255)).astype(np.float32)
    quantize = p.Quantize(0, 0, ways, stairs, 0)
    return p.Program(program.inputs, program.outputs, program.tensors, (quantize, *rest))


def many_steps(count: int) -> p.Program:
    """Make steps with one operand each, shared by all channels."""
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    steps = (p.Step(p.Operation.ADD, np.float32([1])),) * count
    epilogue = p.Rounded(np.ones(count, np.float32), steps, 0)
    many = replace(product(0, window, count, count), epilogue=epilogue)
    return chain([with_codes(1, 1, 1), with_codes(1, 1, count)], [many])


BOMBS: dict[str, tuple[Callable[[int], p.Program], int, bool]] = {
    "wide kernel": (wide_kernel, 700, True),
    "wider kernel": (wide_kernel, 2000, False),
    "shared weights": (shared_weights, 300, False),
    "gaps between taps": (gaps_between_taps, 2500, False),
    "many gathers": (many_gathers, 30_000, False),
    "many gathered": (many_gathered, 30_000, False),
    "long chain": (long_chain, 30_000, True),
    "very long chain": (long_chain, 100_000, False),
    "long pools": (long_pools, 2000, True),
    "long products": (long_products, 500, False),
    "many directions": (many_directions, 1 << 17, True),
    "many steps": (many_steps, 1 << 15, False),
}
"""The function that makes each program, its size, and whether it can be loaded."""
