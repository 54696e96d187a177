# SPDX-License-Identifier: Apache-2.0
"""Programs as nodes of ONNX graphs, for ONNX Runtime with the library of this package."""

from collections.abc import Sequence

import onnx_ir as ir

from anybit.compiler.program.encoding import Encoded, encode
from anybit.compiler.program.network import Network
from anybit.compiler.program.program import Port, Program
from anybit.errors import ModelError
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import describe
from anybit.onnx.operators.integer_network import DOMAIN, NAME, PROGRAM

_OPSET = 17
_IR_VERSION = 8


class OnnxNode:
    """Emits a model with one node, inputs x0, x1, ... and outputs y0, y1, ..."""

    def emit(self, network: Network) -> ir.Model:
        """Emit the model of a program."""
        program = network.program
        inputs = [_declare(f"x{i}", port) for i, port in enumerate(program.inputs)]
        imports = {"": _OPSET, DOMAIN: 1}
        graph = ir.Graph(inputs, [], nodes=[], opset_imports=imports, name="program")
        model = ir.Model(graph, ir_version=_IR_VERSION, producer_name="anybit")
        node = make_node(program, inputs, Editor(model))
        graph.append(node)
        for i, (port, result) in enumerate(zip(program.outputs, node.outputs, strict=True)):
            like = _declare(f"y{i}", port)
            result.name, result.type, result.shape = like.name, like.type, like.shape
        graph.outputs.extend(node.outputs)
        return model


def make_node(program: Program, inputs: Sequence[ir.Value], editor: Editor) -> ir.Node:
    """Return a node that runs a program, for the graph of an editor.

    Its first inputs are new initializers, named after the node. The outputs have neither names nor
    types yet.
    """
    name = editor.unique("integers")
    encoded = encode(program)
    constants = [
        editor.add_constant(f"{name}_{part}", ir.tensor(getattr(encoded, part))) for part in PROGRAM
    ]
    return ir.Node(DOMAIN, NAME, [*constants, *inputs], num_outputs=len(program.outputs), name=name)


def read_encoded(node: ir.Node) -> Encoded:
    """Return the program of a node.

    Raises:
        ModelError: A part of the program is not constant.
    """
    arrays = []
    for part, value in zip(PROGRAM, node.inputs, strict=False):
        constant = None if value is None else value.const_value
        if constant is None:
            raise ModelError(f"{describe(node)} needs {part} as an initializer")
        arrays.append(constant.numpy())
    if len(arrays) < len(PROGRAM):
        raise ModelError(f"{describe(node)} lacks its input {PROGRAM[len(arrays)]}")
    return Encoded(*arrays)


def _declare(name: str, port: Port) -> ir.Value:
    return ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(["n", *port.sizes.tolist()]),
    )
