# SPDX-License-Identifier: Apache-2.0
"""Grids of QuantizeLinear-DequantizeLinear pairs."""

from dataclasses import replace

import onnx_ir as ir

from anybit.onnx.graph.constants import array_of, is_constant
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.metadata import noted
from anybit.onnx.quantizers.nodes import dtype_of, is_dequantize, scaling_of
from anybit.onnx.quantizers.trace import Trace, Traces
from anybit.ops.grids import Coding, Grid, IntegerGrid


def trace_of(node: ir.Node, traces: Traces) -> Trace | None:
    """Return the trace of the codes of a DequantizeLinear, if there is one."""
    codes = node.inputs[0] if node.inputs else None
    if codes is None or not is_dequantize(node):
        return None
    try:
        return traces.of(codes)
    except Inexpressible:
        return None


def grid_of_codes(node: ir.Node, trace: Trace | None) -> Grid | None:
    """Return the grid of a node of ONNX's pair, narrowed by Clips and metadata."""
    codes = node.inputs[0] if node.inputs and is_dequantize(node) else None
    try:
        grid = scaling_of(node, None if codes is None else dtype_of(codes)).grid
    except Inexpressible:
        return None
    if not isinstance(grid, IntegerGrid):
        return grid
    # QuantizeLinear adds the zero-point after rounding.
    coding = Coding.OTHER if grid.zeropt.any() else Coding.NEAREST
    low, high = float(grid.lowest), float(grid.highest)
    if trace is not None:
        low, high = max(low, trace.lowest), min(high, trace.highest)
    if not low <= high:
        return None
    clipped = replace(grid, codes=range(int(low), int(high) + 1), coding=coding)
    if codes is None or not is_constant(codes):
        return clipped
    return noted(clipped, array_of(codes), node.metadata_props) or clipped
