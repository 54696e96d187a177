# SPDX-License-Identifier: Apache-2.0
"""A program as a node of a graph, for ONNX Runtime with the library of this package."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.lowbit.encoding import Encoded, encode
from anybit.lowbit.program import Port, Program
from anybit.onnx.graph.names import described
from anybit.onnx.operators.integer_network import DOMAIN, NAME, PROGRAM

_OPSET = 17
_IR_VERSION = 8


def node_of(program: Program, inputs: Sequence[ir.Value], name: str) -> ir.Node:
    """A node that runs the program; its results have the types and shapes of the outputs.

    Its first inputs are new initializers, called after the node, which the graph that takes it must
    register. The results have no names yet. The number of rows is that of the first input.
    """
    encoded = encode(program)
    constants = [_initializer(f"{name}_{part}", getattr(encoded, part)) for part in PROGRAM]
    node = ir.Node(
        DOMAIN, NAME, [*constants, *inputs], num_outputs=len(program.outputs), version=1, name=name
    )
    shape = inputs[0].shape
    rows = shape[0] if shape is not None and len(shape) else None
    for port, result in zip(program.outputs, node.outputs, strict=True):
        result.type = ir.TensorType(ir.DataType.FLOAT)
        result.shape = ir.Shape([rows, *port.sizes.tolist()])
    return node


def model_of(program: Program) -> ir.Model:
    """A model that is nothing but the program: inputs x0, x1, ..., outputs y0, y1, ..."""
    inputs = [_input(f"x{i}", port) for i, port in enumerate(program.inputs)]
    node = node_of(program, inputs, "program")
    for i, result in enumerate(node.outputs):
        result.name = f"y{i}"
    graph = ir.Graph(
        inputs,
        node.outputs,
        nodes=[node],
        initializers=[value for value in node.inputs if value is not None and value.const_value],
        opset_imports={"": _OPSET, DOMAIN: 1},
        name="program",
    )
    return ir.Model(graph, ir_version=_IR_VERSION, producer_name="anybit")


def encoded_of(node: ir.Node) -> Encoded:
    """The program that a node runs.

    Raises:
        ModelError: A part of the program is not constant.
    """
    arrays = []
    for part, value in zip(PROGRAM, node.inputs, strict=False):
        constant = None if value is None else value.const_value
        if constant is None:
            raise ModelError(f"{described(node)} needs {part} as an initializer")
        arrays.append(constant.numpy())
    if len(arrays) < len(PROGRAM):
        raise ModelError(f"{described(node)} lacks its input {PROGRAM[len(arrays)]}")
    return Encoded(*arrays)


def _initializer(name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    return ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )


def _input(name: str, port: Port) -> ir.Value:
    return ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(["n", *port.sizes.tolist()]),
    )
