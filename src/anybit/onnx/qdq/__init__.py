# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear: their types, what grids they can hold, and both ways there.

    native_types, nodes, metadata           what the two nodes are made of
    grids, fusions, plan, writer            from the grid of an operator to nodes
    trace, before_quantize, lift_codes, lifting, qlinear    from nodes to the grid of an operator

Nothing here names an operator of ours: `Operator.grid` and `Operator.from_grid` are asked.
"""
