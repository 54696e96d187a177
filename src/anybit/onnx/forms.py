# SPDX-License-Identifier: Apache-2.0
"""The forms of a model."""

from enum import StrEnum

NEWEST_OPSET = 25
"""The newest opset that a conversion asks for; it brings the 2-bit types."""


class Form(StrEnum):
    """A target form of conversion."""

    QONNX = "qonnx"
    """QONNX's operators under their canonical names; QuantizeLinear pairs are converted to them."""
    COMPACT = "compact"
    """QONNX's operators for activations; weights are stored as codes of the narrowest native types,
    each with a DequantizeLinear. The smallest file."""
    STANDARD = "standard"
    """Standard operators only; quantized weights are floats."""
    PORTABLE = "portable"
    """QONNX's operators with local functions for runtimes that lack them; weights are floats."""
    QDQ = "qdq"
    """QuantizeLinear and DequantizeLinear on the narrowest native types, weights stored in them;
    nodes that they cannot express exactly become `standard`."""
    QCDQ = "qcdq"
    """The same with 8-bit types and a Clip between the two."""
    MATMULNBITS = "matmulnbits"
    """The same as `qdq`, with ONNX Runtime's MatMulNBits for MatMul and Gemm of constant weights of
    at most 4 bits."""

    @property
    def has_pairs(self) -> bool:
        """Return whether quantizers become pairs of QuantizeLinear and DequantizeLinear."""
        return self in (Form.QDQ, Form.QCDQ, Form.MATMULNBITS)

    @property
    def needs_library(self) -> bool:
        """Return whether ONNX Runtime needs the operator library for quantizers."""
        return self in (Form.QONNX, Form.COMPACT)
