# SPDX-License-Identifier: Apache-2.0
"""Partial derivatives of operators, and backpropagation through them.

The derivative of an operator is that of its formula with `round` counted as the identity (the
straight-through estimator), and so with 0 wherever the formula clips.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anybit.ops.arrays import cast, get_namespace


@dataclass(frozen=True)
class Gradient:
    """The partial derivatives of each element of the result.

    `of` names the inputs with a derivative; the others are integers. `partials` takes the arguments
    of the body and returns the derivatives in the order of `of`, in shapes that broadcast to x.
    """

    of: tuple[str, ...]
    partials: Callable[..., tuple[Any, ...]]


def propagate_gradients(
    gradient: Any,
    inputs: Mapping[str, Any],
    partials: Mapping[str, Any],
    requested: Collection[str],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Any]:
    """Return the gradient of the loss for each requested input, in its shape and dtype.

    `gradient` is the upstream gradient, of the loss with respect to the result. `shapes` are those
    in which the inputs broadcast to x (`Operator.broadcast_shapes`), by default their own.

    If a partial derivative is 0, the product is 0, whatever the upstream gradient. Products are
    summed over broadcast axes, in the compute type.
    """
    gradients = {}
    with np.errstate(all="ignore"):
        for name in requested:
            value, partial = inputs[name], partials[name]
            xp = get_namespace(partial)
            upstream = cast(gradient, partial.dtype)
            product = xp.where(partial == 0, xp.zeros_like(upstream), upstream * partial)
            own = tuple(value.shape)
            total = _sum_to_shape(product, shapes[name] if shapes else own)
            if tuple(total.shape) != own:
                total = xp.reshape(total, own)
            gradients[name] = cast(total, value.dtype)
    return gradients


def _sum_to_shape(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the sum of the array over the axes along which `shape` is repeated."""
    if tuple(array.shape) == shape:
        return array
    xp = get_namespace(array)
    aligned = (1,) * (array.ndim - len(shape)) + shape
    if math.prod(shape) == 0:
        return xp.zeros_like(xp.reshape(array, shape))
    repeated = tuple(axis for axis, size in enumerate(aligned) if size != array.shape[axis])
    return xp.reshape(xp.sum(array, axis=repeated), shape)
