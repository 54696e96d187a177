# SPDX-License-Identifier: Apache-2.0
"""Make targets of Reshapes constant."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.names import Names, names_of
from anybit.onnx.graph.shapes import named_sizes_that_follow
from anybit.onnx.graph.sizes import Sizes

Size: TypeAlias = int | str | None


class FixReshapes(InPlacePass):
    """A Reshape to computed sizes says which of them it keeps, by 0, or which one follows, by -1.

    It is one to constants then, and gives the same wherever it runs. It stays where two sizes are
    free that are not those of what it reads, at their places. Shapes have been inferred.
    """

    def call(self, model: ir.Model) -> PassResult:
        sizes = Sizes(lambda value: named_sizes_that_follow(value, model))
        unique = names_of(model)
        modified = False
        for node in list(model.graph.all_nodes()):
            sizes.follow(node)
            target = node.inputs[1] if len(node.inputs) == 2 else None
            x = node.inputs[0] if target is not None else None
            if (node.domain, node.op_type) != ("", "Reshape") or target is None or x is None:
                continue
            known = None if target.is_initializer() else sizes.of(target)
            if known is None or known.ndim != 1:
                continue
            given = named_sizes_that_follow(x, model)
            fixed = _fixed(list(known), given or (), bool(attribute_of(node, "allowzero", 0)))
            if fixed is not None:
                _fix(node, fixed, unique)
                modified = True
        return PassResult(model, modified)


def _fixed(target: list[Size], given: Sequence[Size], empty: bool) -> list[int] | None:
    """A target in numbers; None where that cannot be said.

    `given` are the sizes of what is reshaped, for which zeros stand unless they mean `empty` axes.
    """
    if 0 in target and empty:  # there are no elements, from which nothing follows
        return None
    own = [*given[: len(target)], *[None] * (len(target) - len(given))]
    target = [known if size == 0 else size for size, known in zip(target, own, strict=True)]
    if 0 in target:
        return None
    # -1 would be refused where there are no rows, and a 0 beside it.
    if target.count(-1) == 0 and sum(not isinstance(size, int) for size in target) == 1:
        return [size if isinstance(size, int) else -1 for size in target]
    kept = [
        0 if isinstance(size, str) and size == known else size
        for size, known in zip(target, own, strict=True)
    ]
    found = [size for size in kept if isinstance(size, int)]
    return found if len(found) == len(kept) else None


def _fix(node: ir.Node, sizes: list[int], unique: Names) -> None:
    assert node.graph is not None, "it was found in one"
    constant = ir.node("Constant", [], {"value": ir.tensor(np.array(sizes, np.int64))})
    constant.name = unique(f"{node.name or node.op_type}_shape")
    constant.outputs[0].name = unique(f"{node.outputs[0].name}_shape")
    node.graph.insert_before(node, constant)
    node.replace_input_with(1, constant.outputs[0])
    node.attributes.pop("allowzero", None)
