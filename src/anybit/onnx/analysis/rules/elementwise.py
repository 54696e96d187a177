# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.carriers import Carrier
from anybit.onnx.analysis.points import image, points_of
from anybit.onnx.analysis.view import View, given
from anybit.onnx.graph.constants import Array


def relu(node: ir.Node, view: View) -> Carrier | None:
    return _applied(node, view, lambda x: np.maximum(x, np.float32(0)))


def _applied(
    node: ir.Node, view: View, function: Callable[[Array], Array], turns: Sequence[float] = (0.0,)
) -> Carrier | None:
    """A function of IEEE arithmetic, monotone between its turning points."""
    value = given(node, 0)
    x = view.carrier(value)
    if x is None or value is None:
        return None
    points = points_of(x, None, turns)
    scales = [] if x.codes is None else [(x.codes.scale, x.codes.zeropt)]
    found = image(points, function, scales, nan=x.nan, sources=sources_of(value, x))
    if not points.every and found.codes is None and function(np.zeros(1, np.float32))[0] == 0:
        # What gives 0 or x gives multiples of what x is one of.
        return replace(found, exponent=x.exponent)
    return found


def sources_of(value: ir.Value, x: Carrier) -> tuple[ir.Value, ...]:
    """Of what a function of the elements of a tensor is a function."""
    return (value,) if x.codes is not None else x.sources
