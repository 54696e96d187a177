# SPDX-License-Identifier: Apache-2.0
"""Quantized constants on one power-of-two grid."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.constants import Array, are_powers_of_two, read_array
from anybit.onnx.graph.editor import Editor, drop_if_unread
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.passes._reorder import take_names
from anybit.onnx.quantizers.quantizer import OwnQuantizer, find_quantizer
from anybit.onnx.quantizers.trace import Traces
from anybit.ops.domain import Role
from anybit.ops.grids import Coding, IntegerGrid

# Wider quantizers are narrowed to the width of their codes.
_WIDE = 16
_MOST_BITS = 32


class OneScale(InPlacePass):
    """Conversion of constants with power-of-two scales to one scale and the minimal width.

    A weight with such scales per channel gets the smallest of them and more bits, as a fixed-point
    type. A bias of more than 16 bits gets the width of its largest code. The stored constant
    becomes the quantized one; results are equal bit for bit. Constants with other scales, a
    zero-point, or codes of more than 32 bits stay.
    """

    def call(self, model: ir.Model) -> PassResult:
        editor, traces = Editor(model), Traces()
        count = 0
        for node in list(iter_nodes(model.graph)):
            quantizer = find_quantizer(node, traces)
            if isinstance(quantizer, OwnQuantizer) and quantizer.constant:
                count += _try_rewrite(quantizer, editor)
        return PassResult(model, bool(count))


def _try_rewrite(quantizer: OwnQuantizer, editor: Editor) -> bool:
    x, grid = quantizer.x, quantizer.grid
    if x is None or x.dtype != ir.DataType.FLOAT or not isinstance(grid, IntegerGrid):
        return False
    scales = np.unique(grid.scale)
    is_plain = grid.coding is Coding.NEAREST and not grid.zeropt.any()
    if not is_plain or not are_powers_of_two(scales).all():
        return False
    if scales.size == 1 and grid.bits <= _WIDE:
        return False
    old = np.asarray(
        quantizer.operator.function(read_array(x), **quantizer.parameters, **quantizer.attributes)
    )
    step = np.float32(scales.min())
    codes = old.astype(np.float64) / step
    if not codes.size or not np.isfinite(codes).all():
        return False
    bits = _count_bits(codes, quantizer)
    if bits > _MOST_BITS or (scales.size == 1 and bits >= grid.bits):
        return False
    # Zeros keep their sign: a quarter of a step below 0 rounds to -0.0.
    stored = np.where((old == 0) & np.signbit(old), -step / np.float32(4), old).astype(np.float32)
    changed = {Role.SCALE: step, Role.BITWIDTH: np.float32(bits)}
    parameters = {
        declared.name: np.asarray(changed.get(declared.role, np.float32(0)))
        for declared in quantizer.inputs[1:]
    }
    new = quantizer.operator.function(stored, **parameters, **quantizer.attributes)
    if np.asarray(new).tobytes() != old.tobytes():
        return False
    _write(quantizer, stored, parameters, editor)
    return True


def _count_bits(codes: Array, quantizer: OwnQuantizer) -> int:
    """Return the bits that codes need in a quantizer of the same attributes."""
    lowest, highest = int(codes.min(initial=0)), int(codes.max(initial=0))
    if not quantizer.attributes["signed"]:
        return max((highest + bool(quantizer.attributes["narrow"])).bit_length(), 1)
    below = -lowest if quantizer.attributes["narrow"] else max(-lowest - 1, 0)
    return max(highest.bit_length(), below.bit_length()) + 1


def _write(
    quantizer: OwnQuantizer, stored: Array, parameters: dict[str, Array], editor: Editor
) -> None:
    node, operator = quantizer.node, quantizer.operator
    arrays = [stored, *(parameters[declared.name] for declared in operator.inputs[1:])]
    for index, array in enumerate(arrays):
        old = node.inputs[index]
        name = str(old.name) if old is not None else f"{node.name}_{operator.inputs[index].name}"
        new = editor.add_constant(name, ir.Tensor(array))
        node.replace_input_with(index, new)
        if old is not None:
            drop_if_unread(old)
            take_names(new, old)
