# SPDX-License-Identifier: Apache-2.0
"""Which values a node can give, be it ours or QuantizeLinear's.

quantizer       the one `Quantizer`
grids           from the grid of an operator to a call, and back
pairs           what QuantizeLinear and DequantizeLinear can give; the rest is what they are:
                nodes, native_types, metadata, trace
"""
