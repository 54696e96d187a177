# SPDX-License-Identifier: Apache-2.0
"""Data movement of codes, as that of floats: MaxPool, Reshape, Transpose, Concat, Pad, ..."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.qdq.codes.emitter import (
    CODE_TYPES,
    CODES,
    ONE,
    CodeScaling,
    Emitted,
    Emitter,
)
from anybit.onnx.quantizers.grids import Inexpressible

_COORDINATES = "coordinate_transformation_mode"

_READS = {
    ("", "QLinearConv"): ((0, 2), (3, 5)),
    ("", "QLinearMatMul"): ((0, 2), (3, 5)),
    ("com.microsoft", "QLinearConv"): ((0, 2),),
    ("com.microsoft", "QGemm"): ((0, 2),),
    ("com.microsoft", "QLinearAdd"): ((0, 2), (3, 5)),
    ("com.microsoft", "QLinearMul"): ((0, 2), (3, 5)),
    ("com.microsoft", "QLinearGlobalAveragePool"): ((0, 2),),
    ("com.microsoft", "QLinearAveragePool"): ((0, 2),),
    ("com.microsoft", "QLinearSigmoid"): ((0, 2),),
    ("com.microsoft", "QLinearLeakyRelu"): ((0, 2),),
    ("com.microsoft", "QLinearSoftmax"): ((0, 2),),
    ("", "ConvInteger"): ((0, 2),),
    ("", "MatMulInteger"): ((0, 2),),
}
"""Places of codes and of their zero-points."""
_WRITES = {
    "QLinearConv": 7,
    "QLinearMatMul": 7,
    "QGemm": 8,
    "QLinearAdd": 7,
    "QLinearMul": 7,
    "QLinearGlobalAveragePool": 4,
    "QLinearAveragePool": 4,
    "QLinearSigmoid": 4,
    "QLinearLeakyRelu": 4,
    "QLinearSoftmax": 4,
    "QLinearConcat": 1,
}
"""Places of the zero-points of results."""


def get_moved(node: ir.Node) -> list[ir.Value]:
    """Return the codes that a node moves; none for other nodes."""
    if not has_trait(node, OpTrait.KEEPS_CODES) or len(node.outputs) != 1:
        return []
    if has_trait(node, OpTrait.RESIZE) and not _copies_codes(node):
        return []
    inputs = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    # ONNX infers no types after some operators of ONNX Runtime.
    types = (*CODE_TYPES, None)
    values = [value for value in inputs if value is not None and value.dtype in types]
    return values if len(values) == len(inputs) else []


def _copies_codes(node: ir.Node) -> bool:
    """Return whether a Resize only repeats elements; outside of x, a crop has another number."""
    nearest = get_attribute(node, "mode", "nearest") == "nearest"
    return nearest and get_attribute(node, _COORDINATES, "") != "tf_crop_and_resize"


def find_zeropts(model: ir.Model) -> Mapping[str, Array]:
    """Return the zero-points with which operators read or write codes, by the names of these.

    Data movement keeps them.
    """
    zeropts: dict[str, Array] = {}
    for node in model.graph:
        for codes, zeropt in _READS.get((node.domain, node.op_type), ()):
            _record(zeropts, get_input(node, codes), get_input(node, zeropt))
        if node.op_type in _WRITES and node.outputs:
            _record(zeropts, node.outputs[0], get_input(node, _WRITES[node.op_type]))
    nodes = [(node, moved) for node in model.graph if (moved := get_moved(node))]
    for node, moved in reversed(nodes):
        for value in moved:
            if node.outputs[0].name in zeropts:
                zeropts.setdefault(str(value.name), zeropts[str(node.outputs[0].name)])
    for node, moved in nodes:
        if moved[0].name in zeropts:
            zeropts.setdefault(str(node.outputs[0].name), zeropts[str(moved[0].name)])
    return zeropts


def _record(zeropts: dict[str, Array], codes: ir.Value | None, zeropt: ir.Value | None) -> None:
    if codes is None or codes.dtype not in (*CODE_TYPES, None) or is_constant(codes):
        return
    if zeropt is not None:
        array = _read(zeropt)
    else:
        array = None if codes.dtype is None else np.zeros((), codes.dtype.numpy())
    if array is not None and array.size == 1 and array.dtype in CODES:
        zeropts.setdefault(str(codes.name), array.reshape(()))


def emit_move(emitter: Emitter, zeropt: Array) -> Emitted:
    """Emit the data movement of floats.

    Args:
        emitter: The node.
        zeropt: The zero-point of its codes.
    """
    node, moved = emitter.node, get_moved(emitter.node)
    floats = [emitter.read_integers(place, zeropt) for place in range(len(moved))]
    inputs = [*floats, *node.inputs[len(moved) :]]
    if node.op_type == "Pad":
        inputs = [
            *inputs[:2],
            *[None] * (2 - len(inputs)),
            _emit_fill(emitter, zeropt),
            *inputs[3:],
        ]
    result = emitter.insert(node.op_type, inputs, list(node.attributes.values()))
    scaling = CodeScaling(ONE, zeropt)
    return Emitted(emitter.quantize(result, scaling), scaling)


def _emit_fill(emitter: Emitter, zeropt: Array) -> ir.Value:
    """Return the number that a Pad adds, by default code 0.

    Raises:
        Inexpressible: It is computed.
    """
    value = get_input(emitter.node, 2)
    fill = np.zeros((), zeropt.dtype) if value is None else emitter.read_constant(2, "fill")
    if fill.size != 1:
        raise Inexpressible(f"its fill has {fill.size} numbers")
    return emitter.add_constant("fill", np.array(int(fill.item()) - int(zeropt), np.float32))


def _read(value: ir.Value) -> Array | None:
    return read_array(value) if is_constant(value) else None
