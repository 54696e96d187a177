# SPDX-License-Identifier: Apache-2.0
"""Gradients: what an operator says of its derivatives, and how they are carried back.

The derivative of an operator is that of its formula with `round` counted as the identity (the
straight-through estimator), and so with 0 wherever the formula clips.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anybit.ops.arrays import cast, namespace


@dataclass(frozen=True)
class Gradient:
    """The partial derivatives of each element of the result.

    `of` names the inputs that have one; the others are integers that nothing moves through.
    `partials` takes the arguments of the body and returns the derivatives in the order of `of`,
    each in a shape that broadcasts to x.
    """

    of: tuple[str, ...]
    partials: Callable[..., tuple[Any, ...]]


def carried_back(
    gradient: Any,
    inputs: Mapping[str, Any],
    partials: Mapping[str, Any],
    wanted: Collection[str],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[str, Any]:
    """For each wanted input the gradient of the loss, in the input's shape and dtype.

    `gradient` is the upstream gradient, of the loss with respect to the result. `shapes` are those
    in which the inputs broadcast to x (`Operator.broadcast_shapes`), by default their own.

    Where a partial derivative is 0 the product is, whatever the upstream gradient. Products are
    summed over what broadcasting repeated, in the compute type.
    """
    found = {}
    with np.errstate(all="ignore"):
        for name in wanted:
            value, partial = inputs[name], partials[name]
            xp = namespace(partial)
            upstream = cast(gradient, partial.dtype)
            product = xp.where(partial == 0, xp.zeros_like(upstream), upstream * partial)
            own = tuple(value.shape)
            total = _summed_to(product, shapes[name] if shapes else own)
            if tuple(total.shape) != own:
                total = xp.reshape(total, own)
            found[name] = cast(total, value.dtype)
    return found


def _summed_to(array: Any, shape: tuple[int, ...]) -> Any:
    """The sum of the array over the axes along which `shape` would be repeated."""
    if tuple(array.shape) == shape:
        return array
    xp = namespace(array)
    aligned = (1,) * (array.ndim - len(shape)) + shape
    if math.prod(shape) == 0:
        return xp.zeros_like(xp.reshape(array, shape))
    repeated = tuple(axis for axis, size in enumerate(aligned) if size != array.shape[axis])
    return xp.reshape(xp.sum(array, axis=repeated), shape)
