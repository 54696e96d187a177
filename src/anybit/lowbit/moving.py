# SPDX-License-Identifier: Apache-2.0
"""Which nodes only move elements. Those ask, too, who plan nothing: this needs nothing else."""

import onnx_ir as ir

RESHAPING = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
GATHERING = ("Gather", "Pad", "Resize", "Slice", "Split", "Tile", "Upsample")
POOLING = ("MaxPool", "GlobalMaxPool")
CONCATENATION, TRANSPOSITION = "Concat", "Transpose"

_ALL = frozenset((*RESHAPING, *GATHERING, *POOLING, CONCATENATION, TRANSPOSITION))


def is_move(node: ir.Node) -> bool:
    """Whether what comes out has the codes of what goes in."""
    return not node.domain and node.op_type in _ALL
