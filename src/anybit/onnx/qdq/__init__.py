# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear: both ways between them and the grids of operators.

    fusions, plan, writer                             from the grid of an operator to nodes
    integer_kernels, reach, saturation                what ONNX Runtime makes of them
    before_quantize, lift_codes, lifting, qlinear     from nodes to the grid of an operator
    packed_weights, nbits                             MatMulNBits, whose weights are packed
    remedies                                          which of them convert replaces

Nothing here names an operator of ours: `Operator.grid` and `Operator.from_grid` are asked.
"""
