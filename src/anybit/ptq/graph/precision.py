# SPDX-License-Identifier: Apache-2.0
"""Float types: float16 models are computed in float32, float64 models are refused."""

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.walk import graphs_in, nodes_in, values_in
from anybit.onnx.passes import ComputeInFloat32, InferShapes
from anybit.ptq.graph.targets import get_factors, is_matmul_like

_HALF, _FLOAT, _DOUBLE = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE
FLOAT_TYPES = (_HALF, ir.DataType.BFLOAT16, _FLOAT, _DOUBLE)
"""The float types of a model's outputs."""


def compute_in_float32(model: ir.Model) -> tuple[str, ...]:
    """Convert a float16 model to float32 in place, and return the remark on it.

    Raises:
        ModelError: Its layers compute in float64.
    """
    changed = ComputeInFloat32()(model).modified
    if layer := _float64_layer(model):
        raise ModelError(
            f"{layer.name} computes in float64, and no layer in float32; convert the model to "
            "float32 first: export it from `model.float()` in PyTorch, or with float32 inputs and "
            "weights elsewhere"
        )
    if not changed:
        return ()
    return (
        "What was float16 is computed and counted in float32 here, and compared with that; inputs "
        "and outputs keep their type.",
    )


def _float64_layer(model: ir.Model) -> ir.Node | None:
    """Return the first layer that computes in float64, unless another one computes in float32."""
    values = (value for graph in graphs_in(model) for value in values_in(graph))
    if not any(value.dtype == _DOUBLE for value in values):
        return None
    InferShapes()(model)
    layers = [node for node in nodes_in(model.graph) if is_matmul_like(node)]
    types = {node: {value.dtype for value in get_factors(node)} for node in layers}
    if any(_FLOAT in of_layer for of_layer in types.values()):
        return None
    return next((node for node in layers if _DOUBLE in types[node]), None)
