# SPDX-License-Identifier: Apache-2.0
"""Make targets of Reshapes constant."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.names import Names, names_of
from anybit.onnx.graph.shapes import sizes_that_follow
from anybit.onnx.graph.sizes import Sizes


class FixReshapes(InPlacePass):
    """A Reshape to computed sizes, of which one is not known and none is 0, has -1 for that one.

    It follows from the number of elements. Shapes have been inferred.
    """

    def call(self, model: ir.Model) -> PassResult:
        sizes = Sizes(lambda value: sizes_that_follow(value, model))
        unique = names_of(model)
        modified = False
        for node in list(model.graph.all_nodes()):
            sizes.follow(node)
            target = node.inputs[1] if len(node.inputs) == 2 else None
            if (node.domain, node.op_type) != ("", "Reshape") or target is None:
                continue
            known = None if target.is_initializer() else sizes.of(target)
            if known is None or list(known.flat).count(None) != 1 or 0 in known.flat:
                continue
            _fix(node, [-1 if size is None else size for size in known.flat], unique)
            modified = True
        return PassResult(model, modified)


def _fix(node: ir.Node, sizes: list[int], unique: Names) -> None:
    assert node.graph is not None, "it was found in one"
    constant = ir.node("Constant", [], {"value": ir.tensor(np.array(sizes, np.int64))})
    constant.name = unique(f"{node.name or node.op_type}_shape")
    constant.outputs[0].name = unique(f"{node.outputs[0].name}_shape")
    node.graph.insert_before(node, constant)
    node.replace_input_with(1, constant.outputs[0])
    node.attributes.pop("allowzero", None)
