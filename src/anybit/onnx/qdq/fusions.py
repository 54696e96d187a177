# SPDX-License-Identifier: Apache-2.0
"""What ONNX Runtime's optimiser would make of a QuantizeLinear and the nodes beside it.

Seen in 1.17 to 1.31, from ORT_ENABLE_BASIC on and whatever the session's other options. Another
node between the two prevents it.
"""

from dataclasses import dataclass

import onnx_ir as ir

from anybit.onnx.operators.registry import operator_of
from anybit.onnx.qdq.nodes import is_dequantize, is_quantize


@dataclass(frozen=True)
class Joins:
    """Which neighbours it would be joined with, so that values change.

    Attributes:
        relu: A Relu before it is dropped for all types but those of 8 and 16 bits, as if zero were
            their lowest code.
        quantizer: Of two quantizers behind one another, one is dropped if they have the same type
            of 8 or 16 bits, and one scale each.
    """

    relu: bool = False
    quantizer: bool = False


def joins_of(node: ir.Node) -> Joins:
    """What stands before and behind a quantizer of an activation."""
    before = _maker(node.inputs[0])
    behind = any(is_quantize(reader) for reader, _ in node.outputs[0].uses())
    return Joins(
        relu=before is not None and (before.domain, before.op_type) == ("", "Relu"),
        quantizer=behind or _gives_codes(before),
    )


def _gives_codes(node: ir.Node | None) -> bool:
    """Whether it is, or may become, a DequantizeLinear."""
    return node is not None and (is_dequantize(node) or operator_of(node) is not None)


def _maker(value: ir.Value | None) -> ir.Node | None:
    node = value.producer() if value is not None else None
    while node is not None and (node.domain, node.op_type) == ("", "Identity"):
        source = node.inputs[0]
        node = None if source is None else source.producer()
    return node
