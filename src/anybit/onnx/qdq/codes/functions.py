# SPDX-License-Identifier: Apache-2.0
"""Functions of codes: QLinearAdd, QLinearMul, pooling, QLinearConcat and lookup tables.

QLinearAdd has two fused multiplications and additions, as on x86-64 CPUs with AVX2. float64 has
their exact results, which are then rounded to float32.
"""

import math

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array
from anybit.onnx.qdq.codes.emitter import CHANNELS_LAST, ONE, CodeScaling, Emitted, Emitter
from anybit.onnx.quantizers.grids import Inexpressible

_FLOAT, _DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE
_EXACT = 2**24
_DOUBLE_BITS, _FLOAT_BITS = 53, 24
_LARGEST_CODE = 2**8
_AXES_ARE_INPUTS = 13
_LEAST_FACTOR, _MOST_FACTOR = 2.0**-32, 256.0
"""Factors of a QLinearGlobalAveragePool that ONNX Runtime accepts, the last one excluded."""
_FIRST_IN_CONCAT = 2
_MOST_STEPS = 512
"""The most codes from 0 to 1 of a QLinearSoftmax: calibration gives 255 or 256."""
_MOST_FACTOR_OF_PRODUCTS = 2.0**15
"""A factor of products of two codes, which the runtime rounds to 32 bits without saturation."""
_MOST_GAIN_OF_SUMS = 2.0**22
"""The same of sums: 255 times this number fits 32 bits."""
_MOST_SCALE = 2.0**119
"""A scale of inputs of a QLinearSoftmax: its products with codes are finite in float32."""


def emit_add(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QLinearAdd.

    The runtime starts from a constant of the zero-points, and adds the second operand first. An
    operand that is one number per row of the other takes the place of the second.
    """
    y = emitter.read_scaling(6, 7, "output")
    places = [(0, 1, "first operand"), (3, 4, "second operand")]
    if _is_first_repeated(emitter):
        places.reverse()
    operands = [
        (place, emitter.read_scaling(scale, scale + 1, role)) for place, scale, role in places
    ]
    gains = [x.scale / y.scale for _, x in operands]
    if not sum(map(float, gains)) < _MOST_GAIN_OF_SUMS:
        raise Inexpressible(
            f"the scales of its operands over that of its output are {gains[0]:g} and "
            f"{gains[1]:g}: from 2^22 on, sums overflow 32 bits in ONNX Runtime"
        )
    zeros = [x.zeropt.astype(np.float32) for _, x in operands]
    zeropts = _fuse(gains[0], zeros[0], gains[1] * zeros[1])
    offset = np.asarray(y.zeropt.astype(np.float32) - zeropts)
    _check_double([*gains, offset])
    products = [
        _emit_gain(emitter, *operand, gain) for operand, gain in zip(operands, gains, strict=True)
    ]
    inner = emitter.add_constant("offset", offset.astype(np.float64))
    first = emitter.cast(emitter.insert("Add", [products[1], inner], dtype=_DOUBLE), _FLOAT)
    outer = emitter.insert("Add", [products[0], emitter.cast(first, _DOUBLE)], dtype=_DOUBLE)
    scaling = CodeScaling(ONE, np.zeros((), y.zeropt.dtype))  # the offset has the zero-point
    return Emitted(emitter.quantize(emitter.cast(outer, _FLOAT), scaling), scaling)


def _emit_gain(emitter: Emitter, place: int, scaling: CodeScaling, gain: Array) -> ir.Value:
    """Return the codes of an operand times a gain, exactly in float64."""
    floats = emitter.cast(emitter.read_integers(place, scaling.zeropt), _DOUBLE)
    zero = emitter.add_constant("zero", scaling.zeropt.astype(np.float64))
    codes = emitter.insert("Add", [floats, zero], dtype=_DOUBLE)
    factor = emitter.add_constant("gain", gain.astype(np.float64))
    return emitter.insert("Mul", [codes, factor], dtype=_DOUBLE)


def emit_mul(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QLinearMul."""
    first, second, y = (emitter.read_scaling(place, place + 1, role) for place, role in _OPERANDS)
    operands = [emitter.read_integers(at, x.zeropt) for at, x in ((0, first), (3, second))]
    factor = first.scale * second.scale / y.scale
    if not factor < _MOST_FACTOR_OF_PRODUCTS:
        raise Inexpressible(
            f"the scales of its operands over that of its output are {factor:g}: from 2^15 on, "
            "products overflow 32 bits in ONNX Runtime"
        )
    product = emitter.insert("Mul", operands)
    scaled = emitter.insert("Mul", [product, emitter.add_constant("factor", factor)])
    zero = emitter.add_constant("zero", y.zeropt.astype(np.float32))
    scaling = CodeScaling(ONE, np.zeros((), y.zeropt.dtype))
    return Emitted(emitter.quantize(emitter.insert("Add", [scaled, zero]), scaling), scaling)


_OPERANDS = ((1, "first operand"), (4, "second operand"), (6, "output"))
"""Places of the scales of both operands and of the result, with their names."""


def emit_global_average_pool(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QLinearGlobalAveragePool: a sum and one factor."""
    x, y = emitter.read_scaling(1, 2, "input"), emitter.read_scaling(3, 4, "output")
    sizes = emitter.get_sizes(0)
    if get_attribute(emitter.node, "channels_last", 0):
        raise Inexpressible(CHANNELS_LAST)
    space = None if sizes is None else [size for size in sizes[2:] if isinstance(size, int)]
    if sizes is None or space is None or len(space) != len(sizes) - 2:
        raise Inexpressible(
            "its height and width are unknown: give the sizes of inputs (anybit compile --shape)"
        )
    count = math.prod(space)
    factor = x.scale / (y.scale * np.float32(count))
    if count * _LARGEST_CODE > _EXACT or not _LEAST_FACTOR <= factor < _MOST_FACTOR:
        raise Inexpressible(f"it adds {count} codes, or its factor {factor:g} is unusual")
    inputs, axes = [emitter.read_integers(0, x.zeropt)], list(range(2, len(sizes)))
    attributes = [ir.AttrInt64("keepdims", 1)]
    if emitter.opset >= _AXES_ARE_INPUTS:
        inputs.append(emitter.add_constant("axes", np.array(axes, np.int64)))
    else:
        attributes.append(ir.AttrInt64s("axes", axes))
    sums = emitter.insert("ReduceSum", inputs, attributes)
    scaled = emitter.insert("Mul", [sums, emitter.add_constant("factor", factor)])
    scaling = CodeScaling(ONE, y.zeropt)
    return Emitted(emitter.quantize(scaled, scaling), scaling)


def emit_average_pool(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QLinearAveragePool, a mean of dequantized floats."""
    if get_attribute(emitter.node, "channels_last", 0):
        raise Inexpressible(CHANNELS_LAST)
    attributes = [a for name, a in emitter.node.attributes.items() if name != "channels_last"]
    return _emit_float_function(emitter, "AveragePool", attributes)


def emit_function(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QLinearSigmoid or QLinearLeakyRelu, tables of the float function."""
    kind = emitter.node.op_type.removeprefix("QLinear")
    return _emit_float_function(emitter, kind, list(emitter.node.attributes.values()))


def emit_softmax(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QLinearSoftmax over the last axis.

    The runtime divides sums of a table of exponentials, integers up to 2^32, and multiplies by
    floor(1 / y_scale). Float32 may give another code only next to a tie.
    """
    x, y = emitter.read_scaling(1, 2, "input"), emitter.read_scaling(3, 4, "output")
    sizes = emitter.get_sizes(0)
    if sizes is None or get_attribute(emitter.node, "axis", -1) not in (-1, len(sizes) - 1):
        raise Inexpressible("its axis is not the last one, or the rank of its input is unknown")
    steps = np.floor(ONE / y.scale)
    if not 1 <= steps <= _MOST_STEPS:
        raise Inexpressible(
            f"the scale of its output is {y.scale:g}: quantize with one from 1/{_MOST_STEPS} to 1"
        )
    if x.scale > _MOST_SCALE:
        raise Inexpressible(f"the scale of its input is {x.scale:g}: quantize with one up to 2^119")
    last = [ir.AttrInt64("axis", -1)]
    result = emitter.insert("Softmax", [emitter.read_floats(0, x)], last)
    scaling = CodeScaling(np.asarray(ONE / steps, np.float32), y.zeropt)
    return Emitted(emitter.quantize(result, scaling), scaling)


def _emit_float_function(emitter: Emitter, kind: str, attributes: list[ir.Attr]) -> Emitted:
    x, y = emitter.read_scaling(1, 2, "input"), emitter.read_scaling(3, 4, "output")
    floats = emitter.read_floats(0, x) if kind == "AveragePool" else emitter.scale_integers(0, x)
    result = emitter.insert(kind, [floats], attributes)
    return Emitted(emitter.quantize(result, y), y)


def emit_concat(emitter: Emitter) -> Emitted:
    """Emit the nodes of a QLinearConcat, which requantizes tensors of other scales."""
    y = emitter.read_scaling(0, 1, "output")
    scaling, tensors = CodeScaling(ONE, y.zeropt), []
    for place in range(_FIRST_IN_CONCAT, len(emitter.node.inputs), 3):
        x = emitter.read_scaling(place + 1, place + 2, f"input {place}")
        if x.key() == y.key():
            tensors.append(emitter.read_integers(place, y.zeropt))
            continue
        floats = emitter.scale_integers(place, x)
        tensors.append(emitter.dequantize(emitter.quantize(floats, y), scaling))
    axis = [ir.AttrInt64("axis", get_attribute(emitter.node, "axis", 0))]
    return Emitted(emitter.quantize(emitter.insert("Concat", tensors, axis), scaling), scaling)


def _fuse(x: Array, y: Array, z: Array) -> Array:
    """Return x * y + z, rounded once."""
    exact = x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64)
    return np.asarray(exact, np.float32)


def _check_double(numbers: list[Array]) -> None:
    """Check that float64 has the exact sums of codes times gains and an offset.

    Raises:
        Inexpressible: The gains differ too much.
    """
    exponents = [int(np.frexp(number)[1]) for number in numbers if number != 0]
    highest = max(exponents) + int(math.log2(_LARGEST_CODE)) + 2
    if highest - (min(exponents) - _FLOAT_BITS) > _DOUBLE_BITS:
        raise Inexpressible("its scales differ too much for the sums of float64 to be exact")


def _is_first_repeated(emitter: Emitter) -> bool:
    """Return whether an element of the first operand meets a whole row of the second.

    Raises:
        Inexpressible: That is unknown.
    """
    first, second = emitter.get_sizes(0), emitter.get_sizes(3)
    if first is None or second is None:
        raise Inexpressible("the rank of an operand is unknown")
    rank = max(len(first), len(second))
    pairs = zip(*((1,) * (rank - len(sizes)) + sizes for sizes in (first, second)), strict=True)
    differing = [pair for pair in list(pairs)[::-1] if pair != (1, 1)]
    for number, (own, other) in enumerate(differing):
        if isinstance(own, int) and isinstance(other, int):
            return own == 1
        if own != other or own is None:
            break
        if any(size == 1 for size, _ in differing[number + 1 :]):
            break
    else:
        return False
    raise Inexpressible(
        "its operands have sizes that are unknown: give those of inputs (anybit compile --shape)"
    )
