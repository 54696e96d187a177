# SPDX-License-Identifier: Apache-2.0
"""Weights that a model stores quantized: those of MatMulNBits, and of quantizers of constants."""

import math
from dataclasses import dataclass

import onnx_ir as ir

from anybit.onnx.analysis.view import get_input
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import find_unfolded_node, follows_from_constants
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.qdq.packed_weights import (
    IN_FLOAT32,
    B,
    describe_level,
    is_nbits,
    read_packed_weight,
)
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import get_dtype, is_dequantize, read_scaling
from anybit.onnx.quantizers.quantizer import find_own_quantizer

_LEVEL = "accuracy_level"


@dataclass(frozen=True)
class StoredWeight:
    """A weight that is quantized already.

    Attributes:
        operator: The operator with its parameters: MatMulNBits, or a quantizer.
        shape: The shape of the weight.
        bits: The bits of a code.
    """

    operator: str
    shape: tuple[int, ...]
    bits: int

    @property
    def text(self) -> str:
        """The weight as reports describe it, in the place of a spec."""
        return f"{self.bits} bits, kept"

    @property
    def bytes(self) -> int:
        """The size at the width of the codes."""
        return -(-math.prod(self.shape) * self.bits // 8)


def has_stored_weights(model: ir.Model) -> bool:
    """Return whether a model has weights of MatMulNBits, or quantizers of constants."""
    return any(is_nbits(node) or _is_weight_quantizer(node) for node in iter_nodes(model.graph))


def is_quantizer(node: ir.Node) -> bool:
    """Return whether a node quantizes, or dequantizes codes."""
    return find_operator(node) is not None or is_dequantize(node)


def find_stored_inputs(node: ir.Node) -> tuple[int, ...]:
    """Return the indices of the factors of a node that are quantized constants."""
    if is_nbits(node):
        return (B,)
    inputs = [(index, get_input(node, index)) for index in (0, 1)]
    return tuple(
        index for index, value in inputs if value is not None and _find_quantizer(value) is not None
    )


def describe_stored_weight(node: ir.Node, index: int) -> StoredWeight | None:
    """Return the description of a quantized factor of a node; None if there is none."""
    value = get_input(node, index)
    if is_nbits(node):
        k, n = get_attribute(node, "K", 0), get_attribute(node, "N", 0)
        return StoredWeight(node.op_type, (k, n), get_attribute(node, "bits", 4))
    quantizer = None if value is None else _find_quantizer(value)
    if quantizer is None or value is None:
        return None
    sizes = tuple(size if isinstance(size, int) else 0 for size in value.shape or ())
    return StoredWeight(quantizer.op_type, sizes, _count_bits(quantizer))


def explain_unreadable(node: ir.Node) -> str:
    """Return why the weight of a MatMulNBits cannot be read; "" if it can, and for other nodes."""
    if is_nbits(node):
        try:
            read_packed_weight(node)
        except Inexpressible as reason:
            return str(reason)
    return ""


def compute_sums_in_float32(node: ir.Node) -> bool:
    """Forbid a MatMulNBits to round its quantized input again; return whether it was allowed."""
    if not is_nbits(node) or not describe_level(node):
        return False
    node.attributes.add(ir.AttrInt64(_LEVEL, IN_FLOAT32))
    return True


def _is_weight_quantizer(node: ir.Node) -> bool:
    x = get_input(node, 0)
    return x is not None and is_quantizer(node) and follows_from_constants(x)


def _find_quantizer(value: ir.Value) -> ir.Node | None:
    """Return the quantizer that computes a value from constants alone."""
    node = find_unfolded_node(value)
    return node if node is not None and is_quantizer(node) else None


def _count_bits(quantizer: ir.Node) -> int:
    if is_dequantize(quantizer):
        codes = get_input(quantizer, 0)
        dtype = None if codes is None else get_dtype(codes)
        try:
            return read_scaling(quantizer, dtype, blocks=True).grid.bits
        except Inexpressible:
            return 8 if dtype is None else int(dtype.bitwidth)
    own = find_own_quantizer(quantizer)
    grid = None if own is None else own.check_grid()
    return 32 if grid is None else grid.bits
