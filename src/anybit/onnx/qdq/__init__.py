# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear: their types, what grids they can hold, and both ways there.

    native_types, layout, codes, linear     what the two nodes are made of
    grids, joins, plan, writer              from the grid of an operator to nodes
    trace, before_quantize, raise_codes, raiser, qlinear    from nodes to the grid of an operator

Nothing here names an operator of ours: `Operator.grid` and `Operator.from_grid` are asked.
"""
