# SPDX-License-Identifier: Apache-2.0
"""What `shard_map` knows of arrays: along which axes of a mesh their values vary.

Custom calls want operands that vary along the same axes. JAX keeps account of that since 0.7; with
older versions there is nothing to do.
"""

from typing import Any

import jax


def _axes(x: Any) -> frozenset[str]:
    kind: Any = jax.typeof(x) if hasattr(jax, "typeof") else None
    if hasattr(kind, "manual_axis_type"):
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


def all_alike(arrays: list[Any]) -> list[Any]:
    """The arrays, each varying along all axes that any of them varies along.

    The cotangent of an array that did not vary is summed along those axes.
    """
    union = frozenset().union(*map(_axes, arrays))
    return [_along(x, tuple(sorted(union - _axes(x)))) for x in arrays]


def _along(x: Any, axes: tuple[str, ...]) -> Any:
    if not axes:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)
