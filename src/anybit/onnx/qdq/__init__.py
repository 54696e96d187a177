# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear: conversion from and to the grids of operators.

    fusions, plan, writer                             from the grid of an operator to nodes
    integer_kernels, saturation                       rewrites by ONNX Runtime
    before_quantize, lift_codes, lifting, qlinear     from nodes to the grid of an operator
    packed_weights, nbits                             MatMulNBits, whose weights are packed
    remedies                                          the commands that messages suggest

Nothing here names an operator of this package: `Operator.grid` and `Operator.from_grid` suffice.
"""
