# SPDX-License-Identifier: Apache-2.0
"""Models in float16 and float64 become models in float32, which is what layers are placed in."""

import onnx_ir as ir

from anybit.onnx.graph.walk import graphs_in, nodes_in, values_in
from anybit.onnx.passes import ComputeInFloat32, InferShapes
from anybit.quantization.placement import multiplied, multiplies

_HALF, _FLOAT, _DOUBLE = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE


def in_float32(model: ir.Model) -> tuple[str, ...]:
    """Change a model, and give what is to be said of that.

    A model that multiplies float32, and computes something else in float64, keeps that: it may be
    what needs so many bits.
    """
    types = [_HALF, _DOUBLE] if _is_double(model) else [_HALF]
    changed = [type for type in types if ComputeInFloat32(type)(model).modified]
    return tuple(
        f"What was float{type.bitwidth} is computed and counted in float32 here, and compared "
        "with that; inputs and outputs keep their type."
        for type in changed
    )


def _is_double(model: ir.Model) -> bool:
    """Whether it multiplies float64, and no float32."""
    values = (value for graph in graphs_in(model) for value in values_in(graph))
    if not any(value.dtype == _DOUBLE for value in values):
        return False
    InferShapes()(model)
    products = [node for node in nodes_in(model.graph) if multiplies(node)]
    types = {value.dtype for node in products for value in multiplied(node)}
    return _DOUBLE in types and _FLOAT not in types
