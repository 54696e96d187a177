# SPDX-License-Identifier: Apache-2.0
"""Two ways to lay out parameters: QONNX's broadcast, ONNX's one dimension and an axis."""

import math
from dataclasses import dataclass

import numpy as np

from anybit.onnx.graph.constants import Array


@dataclass(frozen=True)
class Layout:
    """Scale and zero-point, float32: 0-d with axis None, or 1-D along an axis.

    The axis counts from the end (-1 is the last): parameters that broadcast are aligned there,
    so that the rank of x need not be known.
    """

    scale: Array
    zeropt: Array
    axis: int | None

    def broadcast(self, array: Array) -> Array:
        """A parameter of this layout in the shape that broadcasts to x."""
        if self.axis is None or array.ndim == 0:
            return array
        return array.reshape(-1, *[1] * (-self.axis - 1))


def layout_of(scale: Array, zeropt: Array) -> Layout | None:
    """The layout of parameters that broadcast; None if more than one axis varies."""
    try:
        shape = np.broadcast_shapes(scale.shape, zeropt.shape)
    except ValueError:
        return None
    varying = [axis - len(shape) for axis, size in enumerate(shape) if size != 1]
    if len(varying) > 1 or math.prod(shape) == 0:
        return None
    wanted = shape if varying else ()
    parts = [_spread(each, wanted).reshape(-1 if varying else ()) for each in (scale, zeropt)]
    return Layout(parts[0], parts[1], varying[0] if varying else None)


def _spread(array: Array, shape: tuple[int, ...]) -> Array:
    single = array.reshape(()) if array.size == 1 else array
    return np.array(np.broadcast_to(single, shape), dtype=np.float32)
