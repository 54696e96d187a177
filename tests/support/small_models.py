# SPDX-License-Identifier: Apache-2.0
"""Models of a few nodes for the tests, and the models beside the repository."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

DOMAIN = "qonnx.custom_op.general"


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Any] | None = None,
    *,
    inputs: Mapping[str, Sequence[int | str] | None] | None = None,
    outputs: Sequence[str] = ("y",),
    opsets: Mapping[str, int] | None = None,
    ir_version: int = 8,
) -> onnx.ModelProto:
    """Return a model with float inputs (default: `x` of shape [1, 4])."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            for name, shape in ({"x": [1, 4]} if inputs is None else inputs).items()
        ],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [
            onnx.numpy_helper.from_array(array(value), name)
            for name, value in (constants or {}).items()
        ],
    )
    imports = {"": 13, **({DOMAIN: 1} if opsets is None else opsets)}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(name, version) for name, version in imports.items()],
        ir_version=ir_version,
    )


def model_of_floats(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Any],
    x: Sequence[int | str],
    y: Sequence[int | str],
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a model of standard nodes from x to y of these shapes; float64 becomes float32."""
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    for name, value in arrays.items():
        arrays[name] = value.astype(np.float32) if value.dtype == np.float64 else value
    opsets = {"": opset, "com.microsoft": 1}
    proto = model(nodes, arrays, inputs={"x": x}, opsets=opsets, ir_version=8)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, y))
    return proto


def array(value: Any) -> np.ndarray:
    """Arrays as they are, Python numbers as float32."""
    return value if isinstance(value, np.ndarray) else np.asarray(value, np.float32)


def node(kind: str, inputs: str, outputs: str = "y", *, domain: str = DOMAIN, **options: Any):
    """Return a node called the_TYPE; a second one of its type needs another name."""
    options.setdefault("name", f"the_{kind}")
    return helper.make_node(kind, inputs.split(), outputs.split(), domain=domain, **options)


def quantized_input(scale: Any = 0.5, zeropt: Any = 0, bitwidth: Any = 4, **options: Any):
    """x -> Quant -> y."""
    constants = {"scale": scale, "zeropt": zeropt, "bitwidth": bitwidth}
    return model([node("Quant", "x scale zeropt bitwidth", **options)], constants)


def quantized_weight(bitwidth: Any = 3, **options: Any):
    """x @ Quant(weight) -> y, with the weight that it should be."""
    weight = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
    constants = {"weight": weight, "scale": 0.25, "zeropt": 0, "bitwidth": bitwidth}
    nodes = [
        node("Quant", "weight scale zeropt bitwidth", "quantized", **options),
        node("MatMul", "x quantized", domain=""),
    ]
    return model(nodes, constants), weight


def kinds(made: ir.Model) -> list[str]:
    """Return the operators of all nodes, in order."""
    return [node.op_type for node in made.graph.all_nodes()]
