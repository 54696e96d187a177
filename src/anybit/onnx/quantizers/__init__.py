# SPDX-License-Identifier: Apache-2.0
"""Quantizers of a graph, of this package or ONNX, and the values they can return.

quantizer       the one `Quantizer`
grids           from the grid of an operator to a call, and back
nodes, trace    QuantizeLinear and DequantizeLinear, and the path of codes between them
native_types    their types
metadata        their hints
"""
