# SPDX-License-Identifier: Apache-2.0
"""Layers of the networks of `networks.py`: each function appends to a builder."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from network_builder import CHANNELS, Builder, Tensor
from onnx import TensorProto
from small_models import DOMAIN


def batch_norm(builder: Builder) -> None:
    """Gains of both signs and of 0, offsets among which some are beyond every threshold."""
    last, random = builder.last, builder.random
    count = last.channels
    gain = random.uniform(-0.5, 1.5, count)
    offset = random.normal(0, 0.5, count)
    if builder.chance(4):
        gain[random.integers(count)] = 0
    if builder.chance(4):
        offset[random.integers(count)] = builder.one_of(1e9, -1e9, 1e30)
    mean = random.normal(0, last.spread / 2, count)
    variance = np.full(count, max(last.spread, 1e-6) ** 2) * random.uniform(0.5, 2, count)
    # The operator takes axis 1 for the channels.
    if last.axis:
        return
    builder.grow("BatchNormalization", *map(builder.constant, (gain, offset, mean, variance)))
    builder.last = replace(builder.last, spread=1.0)


def arithmetic(builder: Builder) -> None:
    """Add an operator with a constant, per tensor or per channel, on either side."""
    kind = builder.one_of("Add", "Sub", "Mul", "Div")
    last = builder.last
    low, high = (-last.spread, last.spread) if kind in ("Add", "Sub") else (0.4, 1.7)
    if kind == "Mul" and builder.chance(2):
        low = -1.0
    constant = (
        builder.per_channel(low, high) if builder.chance(2) else builder.constant((low + high) / 2)
    )
    if kind != "Div" and builder.chance(3):
        name = builder.node(kind, [constant, last.name])
        builder.last = replace(last, name=name, codes=False)
        return
    builder.grow(kind, constant)


def activation(builder: Builder) -> None:
    kind = builder.one_of(
        *("Relu", "Relu", "Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "Neg")
    )
    if kind == "Clip":
        limits = builder.one_of((-1.0, 1.0), (0.0, 6.0), (-0.3, 0.7))
        builder.grow("Clip", *map(builder.constant, limits))
    elif kind == "LeakyRelu":
        builder.grow("LeakyRelu", alpha=builder.one_of(0.125, 0.01))
    else:
        builder.grow(kind)
    spread = 1.0 if kind in ("Clip", "Sigmoid", "Tanh") else builder.last.spread
    builder.last = replace(builder.last, spread=min(builder.last.spread, spread))


def tail(builder: Builder) -> None:
    """Up to three elementwise functions, and a quantizer."""
    for _ in range(builder.draw(st.integers(0, 3))):
        builder.draw(st.sampled_from([batch_norm, batch_norm, arithmetic, activation, activation]))(
            builder
        )
    builder.last = builder.quantize(builder.last)


def quantized(builder: Builder) -> Tensor:
    if not builder.last.codes:
        builder.last = builder.quantize(builder.last)
    return builder.last


def convolution(builder: Builder) -> None:
    x = quantized(builder)
    spatial = len(x.row) - 1
    if x.axis:
        dense(builder)
        return
    groups = builder.one_of(1, 1, x.channels, 2 if x.channels % 2 == 0 else 1)
    count = groups * builder.one_of(1, 2) if groups > 1 else builder.one_of(*CHANNELS)
    options = _windows(builder, x.row[1:])
    shape = (count, x.channels // groups, *options["kernel_shape"])
    weight, size = builder.weights(shape, 0)
    inputs = [weight]
    spread = x.spread * size * float(np.sqrt(np.prod(shape[1:])))
    if builder.chance(3):
        inputs.append(builder.constant(builder.random.normal(0, spread, count)))
    builder.grow("Conv", *inputs, group=groups, **options)
    sizes = [_length(x.row[1 + at], at, options) for at in range(spatial)]
    builder.last = replace(builder.last, row=(count, *sizes), spread=spread)
    tail(builder)


def _windows(builder: Builder, sizes: tuple[int, ...]) -> dict[str, list[int]]:
    """Windows that fit: kernel, strides, dilations, and pads that differ from side to side."""
    kernel, strides, dilations, before, after = [], [], [], [], []
    for size in sizes:
        width = builder.one_of(*(count for count in (1, 2, 3) if count <= size))
        dilation = builder.one_of(1, 1, 2) if size > 2 * (width - 1) else 1
        kernel.append(width)
        dilations.append(dilation)
        strides.append(builder.one_of(1, 1, 2, 3))
        pads = builder.draw(st.tuples(*[st.integers(0, width - 1)] * 2))
        before.append(pads[0])
        after.append(pads[1])
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": before + after,
    }


def _length(size: int, at: int, options: dict[str, list[int]]) -> int:
    pads, spatial = options["pads"], len(options["kernel_shape"])
    reach = options["dilations"][at] * (options["kernel_shape"][at] - 1) + 1
    return (size + pads[at] + pads[at + spatial] - reach) // options["strides"][at] + 1


def dense(builder: Builder) -> None:
    """Add a MatMul over the last axis of vectors or sequences."""
    x = quantized(builder)
    terms, count = x.row[-1], builder.one_of(*CHANNELS)
    x = replace(x, axis=len(x.row) - 1)
    builder.last = x
    flat = len(x.row) == 1
    transposed = builder.chance(2)
    shape = (count, terms) if transposed else (terms, count)
    weight, size = builder.weights(shape, 1 - transposed)
    spread = x.spread * size * float(np.sqrt(terms))
    if flat and builder.chance(2):
        bias = [builder.constant(builder.random.normal(0, spread, count))]
        builder.grow("Gemm", weight, *(bias if builder.chance(2) else []), transB=int(transposed))
    else:
        named = builder.node("Transpose", [weight], perm=[1, 0]) if transposed else weight
        builder.grow("MatMul", named)
    builder.last = replace(builder.last, row=(*x.row[:-1], count), spread=spread)
    tail(builder)


def max_pool(builder: Builder) -> None:
    x = builder.last
    if x.axis or len(x.row) < 2:
        return
    options = _windows(builder, x.row[1:])
    # Pads may be no larger than half of a window.
    options["pads"] = [min(pad, 1) for pad in options["pads"]]
    name = builder.node("MaxPool", [x.name], **options)
    sizes = [_length(size, at, options) for at, size in enumerate(x.row[1:])]
    builder.last = replace(x, name=name, row=(x.channels, *sizes))


def average_pool(builder: Builder) -> None:
    """Append a pool, then a quantizer or a Trunc of the upper bits of its sum."""
    x = quantized(builder)
    if x.axis or len(x.row) < 2:
        return
    kind = builder.one_of("GlobalAveragePool", "AveragePool", "ReduceMean")
    window = tuple(min(2, size) for size in x.row[1:])
    if kind == "AveragePool":
        sizes = tuple(size // length for size, length in zip(x.row[1:], window, strict=True))
        builder.grow(kind, kernel_shape=window, strides=window)
    else:
        window, sizes = x.row[1:], (1,) * (len(x.row) - 1)
        axes = builder.constant(range(2, len(x.row) + 1), np.int64)
        builder.grow(kind, *([axes] if kind == "ReduceMean" else []))
    builder.last = replace(builder.last, row=(x.channels, *sizes))
    if builder.chance(2) or builder.qdq:
        builder.last = builder.quantize(builder.last)
        return
    count = int(np.prod(window))
    builder.grow("Mul", builder.constant(count))
    scale = 2.0 ** np.rint(np.log2(max(x.spread, 1e-6) / 4))
    parameters = (scale, 0, 8, scale * 2 ** int(np.ceil(np.log2(count))), builder.one_of(3, 4, 8))
    inputs = [builder.last.name, *map(builder.constant, parameters)]
    mode = builder.one_of("FLOOR", "ROUND")
    name = builder.node("Trunc", inputs, DOMAIN, signed=int(builder.chance(2)), rounding_mode=mode)
    builder.last = replace(builder.last, name=name, codes=True)


def residual(builder: Builder) -> None:
    """Add the input of a layer to its output: a residual, quantized again or not."""
    x = quantized(builder)
    count = x.channels
    if x.axis or len(x.row) < 2:
        body = builder.quantize(replace(x, codes=False))
    else:
        kernel = [3 if size > 1 else 1 for size in x.row[1:]]
        weight, size = builder.weights((count, count, *kernel), 0)
        pads = [length // 2 for length in kernel] * 2
        builder.grow("Conv", weight, kernel_shape=kernel, pads=pads)
        terms = count * int(np.prod(kernel))
        builder.last = replace(builder.last, spread=x.spread * size * float(np.sqrt(terms)))
        tail(builder)
        body = builder.last
    around = builder.quantize(x) if builder.chance(2) else x
    kind = builder.one_of("Add", "Add", "Add", "Sub", "Mul")
    name = builder.node(kind, [body.name, around.name])
    builder.last = replace(x, name=name, spread=body.spread + around.spread, codes=False)
    if builder.chance(2):
        builder.grow("Relu")
    builder.last = builder.quantize(builder.last)


def concatenation(builder: Builder) -> None:
    """Concatenate two tensors of equal or different scales."""
    x = quantized(builder)
    other = builder.quantize(x) if builder.chance(2) else x
    name = builder.node("Concat", [x.name, other.name], axis=x.axis + 1)
    row = tuple(size * (2 if at == x.axis else 1) for at, size in enumerate(x.row))
    builder.last = replace(x, name=name, row=row)
    if builder.chance(2):
        builder.last = builder.quantize(builder.last)


def moved(builder: Builder) -> None:
    """Elements in another place: nothing is computed."""
    x = builder.last
    whole = [0] * (len(x.row) + 1)
    kind = builder.one_of("Slice", "Pad", "Resize", "Split", "Reshape")
    if kind == "Slice" and x.row[-1] > 2:
        ends = [builder.constant([end], np.int64) for end in (1, x.row[-1], -1, 2)]
        name = builder.node("Slice", [x.name, *ends])
        row = (*x.row[:-1], len(range(1, x.row[-1], 2)))
    elif kind == "Pad" and len(x.row) > 1:
        pads = builder.constant([*whole[:-1], 1, *whole[:-1], 2], np.int64)
        name, row = builder.node("Pad", [x.name, pads]), (*x.row[:-1], x.row[-1] + 3)
    elif kind == "Resize" and len(x.row) == 3 and x.axis == 0:
        inputs = [x.name, "", builder.constant([1, 1, 2, 2])]
        modes = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
        name = builder.node("Resize", inputs, mode="nearest", **modes)
        row = (x.channels, 2 * x.row[1], 2 * x.row[2])
    elif kind == "Reshape" and len(x.row) == 3 and x.axis == 0:
        row = (x.channels, x.row[1] * x.row[2])
        shape = builder.constant([0, x.channels, -1], np.int64)
        if builder.chance(2):
            shape = computed_sizes(builder, x, row)
        name = builder.node("Reshape", [x.name, shape])
    else:
        return
    builder.last = replace(x, name=name, row=row)


def transposed(builder: Builder) -> None:
    """Channels to the end; products of sequences follow."""
    x = builder.last
    if x.axis or len(x.row) < 2:
        return
    last = len(x.row)
    name = builder.node("Transpose", [x.name], perm=[0, *range(2, last + 1), 1])
    builder.last = replace(x, name=name, row=(*x.row[1:], x.row[0]), axis=last - 1)
    dense(builder)


def flatten(builder: Builder) -> None:
    x = builder.last
    size = int(np.prod(x.row))
    if size <= 400:
        named = (
            builder.node("Reshape", [x.name, computed_sizes(builder, x, [size])])
            if builder.chance(2)
            else builder.node("Flatten", [x.name])
        )
        builder.last = replace(x, name=named, row=(size,), axis=0)
        dense(builder)


def requantize(builder: Builder) -> None:
    """Append two quantizers in sequence, or with a function between them."""
    if builder.chance(2):
        activation(builder)
    builder.last = builder.quantize(builder.last)


def softmax(builder: Builder) -> None:
    builder.grow("Softmax", axis=-1)
    builder.last = replace(builder.last, spread=1 / builder.last.row[-1])


def layer_norm(builder: Builder) -> None:
    size = builder.last.row[-1]
    gain = builder.constant(builder.random.uniform(0.5, 1.5, size))
    builder.grow("LayerNormalization", gain, axis=-1)
    builder.last = replace(builder.last, spread=1.0)


def float_layers(builder: Builder) -> None:
    """Add nodes that stay float between two regions."""
    builder.one_of(softmax, layer_norm)(builder)
    builder.last = builder.quantize(builder.last)


def float_product(builder: Builder) -> None:
    """Add a MatMul with float weights."""
    last = builder.last
    weight = builder.constant(builder.random.normal(0, 1, (last.row[-1], 3)))
    builder.grow("MatMul", weight)
    builder.last = replace(builder.last, row=(*last.row[:-1], 3), axis=len(last.row) - 1)


def shifted(builder: Builder) -> None:
    """Map 0..1 to -1..1, as exporters write it."""
    builder.grow("Mul", builder.constant(2.0))
    builder.grow("Sub", builder.constant(1.0))


HEADS = (shifted, softmax, layer_norm)
FOOTS = (softmax, layer_norm, float_product, batch_norm, activation)
_ANYWHERE = (residual, concatenation, moved, requantize, float_layers)
LAYERS = {
    3: (
        *(convolution,) * 6,
        *(residual, average_pool, max_pool, max_pool, flatten, transposed),
        *_ANYWHERE,
    ),
    2: (*(convolution,) * 3, *(dense,) * 2, average_pool, max_pool, flatten, *_ANYWHERE),
    1: (*(dense,) * 6, *_ANYWHERE),
}


def computed_sizes(builder: Builder, x: Tensor, row: Sequence[int]) -> str:
    """Return the shape of the rows of x followed by these sizes; one of them may be -1."""
    rest = builder.constant([-1, *row[1:]] if builder.chance(3) else row, np.int64)
    return builder.node("Concat", [_rows(builder, x), rest], axis=0)


def _rows(builder: Builder, x: Tensor) -> str:
    """Return the number of rows of x or of the input, as exporters compute it."""
    source = builder.one_of(x.name, x.name, "x")
    short = builder.chance(2)
    if not short and builder.chance(3):
        return builder.node("Shape", [source], start=0, end=1)
    sizes = builder.node("Shape", [source])
    if short:
        sizes = builder.node("Cast", [sizes], to=TensorProto.INT32)
    zero, one = (builder.constant([index], np.int64) for index in (0, 1))
    kind = builder.one_of("Slice", "Gather", "Unsqueeze")
    if kind == "Slice":
        count = builder.node("Slice", [sizes, zero, one, zero, one])
    elif kind == "Gather":
        count = builder.node("Gather", [sizes, zero])
    else:
        number = builder.node("Gather", [sizes, builder.constant(0, np.int64)])
        count = builder.node("Unsqueeze", [number, zero])
    return builder.node("Cast", [count], to=TensorProto.INT64) if short else count
