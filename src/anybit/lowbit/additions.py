# SPDX-License-Identifier: Apache-2.0
"""Functions of two codes that are a weighted sum, rounded: arithmetic instead of their table.

The weights are those of the plane through what the last quantizer rounds. Of the floats next to
them those count that give the table at every pair: near ties the roundings of the float graph
decide, and those of its sum are other ones than ours.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.lowbit import program as p
from anybit.lowbit.elementwise import is_quantizer, quantizing
from anybit.lowbit.parts import Codes, Expression, PairRoot
from anybit.lowbit.reference import added
from anybit.onnx.graph.constants import Array

# How far from a tie a pair may be that the roundings of float32 move over it.
_NEAR = 1e-3
# By how many floats gains and offset are moved at most.
_FAR = 2


def addition_of(
    model: ir.Model, expression: Expression, pairs: tuple[Array, Array], codes: Codes, index: Array
) -> dict[str, Any] | None:
    """The fields of an `Add` that gives the index of every pair; None if none is found.

    Args:
        model: The graph.
        expression: A function of two tensors of codes.
        pairs: The values of all pairs of codes, the second's running fastest, in one column each.
        codes: What the function gives.
        index: The index of what it gives for each pair.
    """
    if index.shape[1] != 1:
        return None
    root, index = expression.root, index[:, 0]
    assert isinstance(root, PairRoot), "asked before"
    sources = root.first.codes, root.second.codes
    grid = np.indices([each.levels for each in sources]).reshape(2, -1)
    zeros = np.array([each.shift for each in sources], np.int32)
    plane = np.stack([*(grid - zeros[:, None]), np.ones_like(index)], axis=1).astype(np.float64)
    inside = (index > index.min()) & (index < index.max())
    values = _rounded_values(model, expression, pairs, codes)
    steps = (index if values is None else values)[inside]
    if not steps.size or not np.isfinite(steps).all():
        return None
    weights = np.linalg.lstsq(plane[inside], steps, rcond=None)[0]
    y = plane @ weights
    shift = int(np.median(index[inside] - np.rint(y[inside])))
    if np.abs(index - shift - y)[inside].max() > 0.5 + _NEAR or abs(shift) >= p.MOST_SHIFT:
        return None
    near = np.abs(y - np.floor(y) - 0.5) < _NEAR
    bounds = int(index.min()), int(index.max())
    for gains, offset, odd in _nearby(weights):
        found = p.Add(0, 0, 0, zeros, gains, offset, shift - odd, *bounds)
        # Nearly all that fail do so here.
        if np.array_equal(added(found, *grid[:, near]), index[near]) and np.array_equal(
            added(found, *grid), index
        ):
            fields = ("zeros", "gains", "offset", "shift", "lowest", "highest")
            return {name: getattr(found, name) for name in fields}
    return None


def _nearby(weights: Array) -> Iterator[tuple[Array, Array, int]]:
    """Gains and an offset in float32, those first that are moved least, and what both add.

    Ties go to the even number, which is an odd index where the graph adds an odd zero-point first.
    """
    moves = itertools.product(range(-_FAR, _FAR + 1), repeat=3)
    for by in sorted(moves, key=lambda each: sum(map(abs, each))):
        for odd in (0, 1):
            yield _moved(weights[:2], by[:2]), _moved(weights[2:] + odd, by[2:]), odd


def _rounded_values(
    model: ir.Model, expression: Expression, pairs: tuple[Array, Array], codes: Codes
) -> Array | None:
    """What the last quantizer rounds, in steps of its codes; None if it is not the last node."""
    if not expression.nodes or not is_quantizer(expression.nodes[-1]):
        return None
    x, nodes = quantizing(expression.nodes[-1])
    before = expression.nodes[: -len(nodes)]
    if not before or before[-1].outputs[0] is not x:
        return None
    floats = replace(expression, value=x, nodes=before).function(model)(*pairs)
    return np.asarray(floats[:, 0].astype(np.float64) / (codes.scale * codes.step))


def _moved(numbers: Array, by: tuple[int, ...]) -> Array:
    """Floats that lie so many floats beside numbers."""
    found = numbers.astype(np.float32)
    for place, count in enumerate(by):
        for _ in range(abs(count)):
            found[place] = np.nextafter(found[place], np.float32(np.copysign(np.inf, count)))
    return found
