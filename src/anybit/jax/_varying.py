# SPDX-License-Identifier: Apache-2.0
"""What `shard_map` knows of arrays: along which axes of a mesh their values vary.

Custom calls want operands that vary along the same axes. JAX has kept account of that since 0.6 or
so; before, there is nothing to do.
"""

from typing import Any

import jax


def _axes(x: Any) -> frozenset[str]:
    typeof = getattr(jax, "typeof", None)
    return getattr(typeof(x), "vma", frozenset()) if typeof else frozenset()


def axes_of(x: Any) -> dict[str, Any]:
    """The keywords of `jax.ShapeDtypeStruct` for a result that varies as x does."""
    axes = _axes(x)
    return {"vma": axes} if axes else {}


def all_alike(arrays: list[Any]) -> list[Any]:
    """The arrays, each varying along all axes that any of them varies along.

    What arrives from behind for an array that did not vary is summed along those axes.
    """
    union = frozenset().union(*map(_axes, arrays))
    return [_along(x, tuple(sorted(union - _axes(x)))) for x in arrays]


def _along(x: Any, axes: tuple[str, ...]) -> Any:
    if not axes:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)
