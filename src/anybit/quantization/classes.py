# SPDX-License-Identifier: Apache-2.0
"""Which outputs have classes: numbers of which the largest is the answer."""

import onnx_ir as ir

from anybit.lowbit.moving import is_move

# As many words has the largest vocabulary.
_MOST = 2**18
_BOX = 4
# What these give, or put together, is not compared with one another.
_OTHERS = (
    "Concat",
    "GlobalAveragePool",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "LpNormalization",
    "ReduceL2",
    "ReduceMean",
)


def with_classes(model: ir.Model) -> frozenset[str]:
    """The names of the outputs whose last axis stands for classes, as far as the model shows it.

    That axis has a fixed size, of two or three axes. Of three it is not longer than a fixed one
    before it, and is not 4, as for boxes. Nor is the output put together of others, normalized or
    averaged, as features are.
    """
    return frozenset(str(each.name) for each in model.graph.outputs if _has_classes(each))


def _has_classes(value: ir.Value) -> bool:
    sizes = () if value.shape is None else tuple(value.shape)
    last = sizes[-1] if len(sizes) in (2, 3) else None
    if not isinstance(last, int) or not 2 <= last <= _MOST:
        return False
    if len(sizes) == 3 and (last == _BOX or (isinstance(sizes[1], int) and sizes[1] < last)):
        return False
    node = value.producer()
    while node is not None and node.op_type not in _OTHERS and is_move(node) and node.inputs[0]:
        node = node.inputs[0].producer()
    return node is None or bool(node.domain) or node.op_type not in _OTHERS
