# SPDX-License-Identifier: Apache-2.0
"""A model as the rules of a check see it."""

from dataclasses import dataclass, replace

import onnx_ir as ir

from anybit.onnx.graph.walk import nodes_in
from anybit.onnx.quantizers.quantizer import OwnQuantizer, own_node


@dataclass(frozen=True)
class Subject:
    """A model under check.

    Attributes:
        file: The model as it is in the file.
        model: The same, normalized, its shapes inferred and its scales and widths computed.
        quantizers: The nodes of our operators, dequantizers included, those left out that cannot
            be understood.
    """

    file: ir.Model
    model: ir.Model
    quantizers: tuple[OwnQuantizer, ...]


def subject_of(file: ir.Model, model: ir.Model) -> Subject:
    spelled = {value.name: node.op_type for node in nodes_in(file.graph) for value in node.outputs}
    quantizers = []
    for node in nodes_in(model.graph):
        found = own_node(node)
        if found is not None:
            name = spelled.get(node.outputs[0].name, node.op_type)
            quantizers.append(replace(found, spelled=name))
    return Subject(file, model, tuple(quantizers))
