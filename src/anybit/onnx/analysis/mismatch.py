# SPDX-License-Identifier: Apache-2.0
"""The error of inconsistent models in analyses."""

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array


class Mismatch(ModelError):
    """Sizes or attributes of a node are inconsistent: a runtime would refuse it."""


def check_channels(*arrays: Array) -> int:
    """Return the common number of channels of arrays that are 0-d or per channel.

    Raises:
        Mismatch: The numbers of channels differ.
    """
    sizes = {array.size for array in arrays} - {1}
    if len(sizes) > 1:
        raise Mismatch(f"its operands have {' and '.join(map(str, sorted(sizes)))} channels")
    return next(iter(sizes), 1)
