# SPDX-License-Identifier: Apache-2.0
"""Packing of dequantized weights for ONNX Runtime's MatMulNBits."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.require import require_input
from anybit.onnx.qdq.packed_weights import pack_codes
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import get_dtype, is_dequantize, read_scaling

# The operator has a scale per block. Blocks are powers of two; those of weights with a scale per
# channel are free.
_LEAST_BLOCK, _MOST_BLOCK, _USUAL_BLOCK = 16, 256, 128
SMALL_BITS, LARGE_BITS = 4, 8
"""The sizes of packed codes."""


@dataclass(frozen=True)
class NBitsWeight:
    """A weight as MatMulNBits reads it.

    Attributes:
        k, n, block, bits: Sizes of the weight [K, N], of a block along K and of a code.
        least_bits: The bits that its codes and zero-points need.
        codes: Packed codes, uint8 [N, blocks, block * bits / 8].
        scales: float32 [N, blocks].
        zeropts: Packed zero-points, uint8 [N, ceil(blocks * bits / 8)]; None if all are half the
            number of codes.
    """

    k: int
    n: int
    block: int
    bits: int
    least_bits: int
    codes: Array
    scales: Array
    zeropts: Array | None


def pack_weight(node: ir.Node, *, transposed: bool, most_bits: int) -> NBitsWeight:
    """Pack the constant codes of a DequantizeLinear; the last block is filled with zero-points.

    The weights (code - zeropt) * scale are the same bits.

    Args:
        node: The DequantizeLinear of a weight [K, N].
        transposed: Whether its weight is [N, K].
        most_bits: The most bits of a code, SMALL_BITS or LARGE_BITS.

    Raises:
        Inexpressible: MatMulNBits has no such weight.
        ModelError: Parameters are inconsistent with each other or with the codes.
    """
    source = require_input(node)
    scaling = read_scaling(node, get_dtype(source), blocks=True)
    if scaling.type.format is not None:
        raise Inexpressible(f"its codes are {scaling.type.name}, not integers")
    codes = read_array(source)
    if codes.ndim != 2 or codes.size == 0:
        raise Inexpressible(f"its weight has shape {list(codes.shape)}, not [K, N]")
    codes = codes.astype(np.int32)
    zeropts = np.broadcast_to(scaling.zeropt, codes.shape)
    scales = np.broadcast_to(scaling.scale, codes.shape)
    if not transposed:
        codes, zeropts, scales = codes.T, zeropts.T, scales.T
    block = _choose_block(get_attribute(node, "block_size", 0), codes.shape[1])
    zeropts_of_blocks = _require_equal(zeropts, block, "zero-points").astype(np.int32)
    scales_of_blocks = np.ascontiguousarray(_require_equal(scales, block, "scales"))
    bits, first = _choose_range(codes, zeropts_of_blocks, most_bits)
    length = zeropts_of_blocks.shape[1] * block
    filled = np.repeat(zeropts_of_blocks - first, block, axis=1)  # zeros
    filled[:, : codes.shape[1]] = codes - first
    blocks = filled.reshape(len(codes), length // block, block).astype(np.uint8)
    stored_zeropts = (zeropts_of_blocks - first).astype(np.uint8)
    centered = bool(np.all(stored_zeropts == 2 ** (bits - 1)))
    return NBitsWeight(
        k=codes.shape[1],
        n=len(codes),
        block=block,
        bits=bits,
        least_bits=max(1, int(filled.max() - filled.min()).bit_length()),
        codes=pack_codes(blocks, bits),
        scales=scales_of_blocks,
        zeropts=None if centered else pack_codes(stored_zeropts, bits),
    )


def find_weight(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear of constant codes that computes a value."""
    node = None if value is None else value.producer()
    if node is None or not is_dequantize(node) or node.inputs[0] is None:
        return None
    return node if is_constant(node.inputs[0]) else None


def _choose_block(block: int, k: int) -> int:
    """Return the block size for a weight with blocks of a size along K, or for 0 without."""
    if block:
        whole = min(block & -block, _MOST_BLOCK)
        if whole < _LEAST_BLOCK:
            raise Inexpressible(
                f"it has blocks of {block}; those of MatMulNBits are multiples of {_LEAST_BLOCK}"
            )
        return whole
    return min(_USUAL_BLOCK, max(_LEAST_BLOCK, 1 << (k - 1).bit_length()))


def _require_equal(parameter: Array, block: int, role: str) -> Array:
    """Return the parameter of each block of [N, K], in which it must not vary."""
    firsts = parameter[:, ::block]
    whole = np.repeat(firsts, block, axis=1)[:, : parameter.shape[1]]
    if not np.array_equal(whole, parameter):
        raise Inexpressible(f"its {role} vary along K within {block} elements")
    return firsts


def _choose_range(codes: Array, zeropts: Array, most_bits: int) -> tuple[int, int]:
    """Return the bits of a code and the code that is stored as 0, for all codes and zero-points."""
    lowest = min(int(codes.min()), int(zeropts.min()))
    highest = max(int(codes.max()), int(zeropts.max()))
    for bits in (SMALL_BITS, LARGE_BITS):
        if bits > most_bits:
            break
        half = 2 ** (bits - 1)
        for first in (-half, 0, lowest):
            if first <= lowest and highest < first + 2 * half:
                return bits, first
    remedy = "; --allow-approximate packs 8 bits" if most_bits < LARGE_BITS else ""
    raise Inexpressible(f"its codes lie in {lowest}..{highest}, more than {most_bits} bits{remedy}")
