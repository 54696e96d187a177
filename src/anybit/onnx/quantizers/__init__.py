# SPDX-License-Identifier: Apache-2.0
"""Quantizers of a graph, of this package or ONNX, and the values they can return.

quantizer       the one `Quantizer`
grids           from the grid of an operator to a call, and back
pairs           grids of QuantizeLinear and DequantizeLinear; their parts are in
                nodes, native_types, metadata, trace
"""
