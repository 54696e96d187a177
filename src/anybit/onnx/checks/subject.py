# SPDX-License-Identifier: Apache-2.0
"""The model under check, as the rules use it."""

from dataclasses import dataclass, replace

import onnx_ir as ir

from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.quantizers.quantizer import OwnQuantizer, find_own_quantizer


@dataclass(frozen=True)
class Subject:
    """A model under check.

    Attributes:
        file: The model as it is in the file.
        model: The normalized model, with inferred shapes and folded scales and widths.
        quantizers: The valid nodes of this package's operators, including dequantizers.
    """

    file: ir.Model
    model: ir.Model
    quantizers: tuple[OwnQuantizer, ...]


def make_subject(file: ir.Model, model: ir.Model) -> Subject:
    spelled = {
        value.name: node.op_type for node in iter_nodes(file.graph) for value in node.outputs
    }
    quantizers = []
    for node in iter_nodes(model.graph):
        own = find_own_quantizer(node)
        if own is not None:
            name = spelled.get(node.outputs[0].name, node.op_type)
            quantizers.append(replace(own, spelled=name))
    return Subject(file, model, tuple(quantizers))
