# SPDX-License-Identifier: Apache-2.0
"""Constant targets of Reshapes."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.names import NameGenerator, make_name_generator
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_graph
from anybit.onnx.graph.shapes import get_named_sizes
from anybit.onnx.graph.sizes import SizePropagator

NamedSize: TypeAlias = int | str | None


class FixReshapes(InPlacePass):
    """Replacement of computed targets of Reshapes by constants with 0 (keep) and -1 (infer).

    A Reshape stays if two dynamic sizes differ from those of its input at the same positions.
    Shapes are inferred.
    """

    def call(self, model: ir.Model) -> PassResult:
        sizes = SizePropagator(lambda value: get_named_sizes(value, model))
        unique = make_name_generator(model)
        modified = False
        for node in list(model.graph.all_nodes()):
            sizes.evaluate(node)
            target = node.inputs[1] if len(node.inputs) == 2 else None
            x = node.inputs[0] if target is not None else None
            if not is_onnx_op(node, "Reshape") or target is None or x is None:
                continue
            target_sizes = None if target.is_initializer() else sizes.get(target)
            if target_sizes is None or target_sizes.ndim != 1:
                continue
            input_sizes = get_named_sizes(x, model)
            fixed = _resolve_target(
                list(target_sizes), input_sizes or (), bool(get_attribute(node, "allowzero", 0))
            )
            if fixed is not None:
                _fix(node, fixed, unique)
                modified = True
        return PassResult(model, modified)


def _resolve_target(
    target: list[NamedSize], input_sizes: Sequence[NamedSize], allowzero: bool
) -> list[int] | None:
    """Return a constant target with 0 and -1; None if it cannot be constant.

    `input_sizes` are the sizes of the input, which zeros copy without `allowzero`.
    """
    if 0 in target and allowzero:  # with allowzero, 0 is an empty axis
        return None
    own = [*input_sizes[: len(target)], *[None] * (len(target) - len(input_sizes))]
    target = [own_size if size == 0 else size for size, own_size in zip(target, own, strict=True)]
    if 0 in target:
        return None
    # -1 is refused with a batch of no rows, and next to a 0.
    if target.count(-1) == 0 and sum(not isinstance(size, int) for size in target) == 1:
        return [size if isinstance(size, int) else -1 for size in target]
    kept = [
        0 if isinstance(size, str) and size == own_size else size
        for size, own_size in zip(target, own, strict=True)
    ]
    fixed = [size for size in kept if isinstance(size, int)]
    return fixed if len(fixed) == len(kept) else None


def _fix(node: ir.Node, sizes: list[int], unique: NameGenerator) -> None:
    constant = ir.node("Constant", [], {"value": ir.tensor(np.array(sizes, np.int64))})
    constant.name = unique(f"{node.name or node.op_type}_shape")
    constant.outputs[0].name = unique(f"{node.outputs[0].name}_shape")
    require_graph(node).insert_before(node, constant)
    node.replace_input_with(1, constant.outputs[0])
    node.attributes.pop("allowzero", None)
