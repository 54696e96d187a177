# SPDX-License-Identifier: Apache-2.0
"""Float types of models: float16 is converted to float32, float64 is rejected."""

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.walk import iter_graphs, iter_nodes, iter_values
from anybit.onnx.passes import ComputeInFloat32, InferShapes
from anybit.ptq.graph.targets import get_factors, is_matmul_like

_HALF, _FLOAT, _DOUBLE = ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE
FLOAT_TYPES = (_HALF, ir.DataType.BFLOAT16, _FLOAT, _DOUBLE)
"""Float types of a model's outputs."""


def compute_in_float32(model: ir.Model) -> tuple[str, ...]:
    """Convert a float16 model to float32 in place, and return a remark on that.

    Raises:
        ModelError: The layers of the model compute in float64.
    """
    is_changed = ComputeInFloat32()(model).modified
    if layer := _find_float64_layer(model):
        raise ModelError(
            f"{layer.name} computes in float64, and no layer in float32; convert the model to "
            "float32 first: export it from `model.float()` in PyTorch, or with float32 inputs and "
            "weights elsewhere"
        )
    if not is_changed:
        return ()
    return (
        "float16 tensors are computed in float32, and metrics compare with that; inputs and "
        "outputs keep their dtype.",
    )


def _find_float64_layer(model: ir.Model) -> ir.Node | None:
    """Return the first layer that computes in float64; None if some layer computes in float32."""
    values = (value for graph in iter_graphs(model) for value in iter_values(graph))
    if not any(value.dtype == _DOUBLE for value in values):
        return None
    InferShapes()(model)
    layers = [node for node in iter_nodes(model.graph) if is_matmul_like(node)]
    dtypes = {node: {value.dtype for value in get_factors(node)} for node in layers}
    if any(_FLOAT in of_layer for of_layer in dtypes.values()):
        return None
    return next((node for node in layers if _DOUBLE in dtypes[node]), None)
