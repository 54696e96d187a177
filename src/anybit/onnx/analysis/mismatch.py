# SPDX-License-Identifier: Apache-2.0
"""What a model may get wrong about a node."""

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array


class Mismatch(ModelError):
    """Sizes or attributes of a node that do not fit together: a runtime would refuse it."""


def check_channels(*arrays: Array) -> int:
    """How many channels arrays have together that hold one number, or one per channel.

    Raises:
        Mismatch: They have different numbers of them.
    """
    sizes = {each.size for each in arrays} - {1}
    if len(sizes) > 1:
        raise Mismatch(f"tensors of {' and '.join(map(str, sorted(sizes)))} channels meet")
    return next(iter(sizes), 1)
