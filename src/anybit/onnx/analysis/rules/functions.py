# SPDX-License-Identifier: Apache-2.0
"""Elementwise functions that each runtime approximates in its own way: bounds only.

Applied to codes they are functions of one code, and before a quantizer they become tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.abstract_values import AbstractValue, from_interval
from anybit.onnx.analysis.points import list_points, map_points
from anybit.onnx.analysis.rules.elementwise import get_sources
from anybit.onnx.analysis.sums import exceeds_float32
from anybit.onnx.analysis.view import View, get_input, make_unknown, may_be_float32
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array

# No runtime deviates that much.
_MARGIN = 2.0**-12


@dataclass(frozen=True)
class Smooth:
    """A function in float64, the defaults of its attributes, and its turning points."""

    compute: Callable[..., Array]
    attributes: Mapping[str, float]
    turns: tuple[float, ...] = (0.0,)


def _compute_sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _compute_erf(x: Array) -> Array:
    # Accurate to 1.5e-7 (Abramowitz and Stegun 7.1.26); the margin is wider.
    t = 1 / (1 + 0.3275911 * np.abs(x))
    coefficients = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    polynomial = np.zeros_like(t)
    for coefficient in coefficients:
        polynomial = (polynomial + coefficient) * t
    return np.asarray(np.sign(x) * (1 - polynomial * np.exp(-x * x)))


def _compute_softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


def _compute_elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _compute_selu(x: Array, alpha: float, gamma: float) -> Array:
    return np.where(x < 0, gamma * alpha * np.expm1(np.minimum(x, 0)), gamma * x)


def _compute_celu(x: Array, alpha: float) -> Array:
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha))


def _compute_hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


FUNCTIONS: dict[str, Smooth] = {
    "Atan": Smooth(np.arctan, {}),
    "Celu": Smooth(_compute_celu, {"alpha": 1.0}),
    "Elu": Smooth(_compute_elu, {"alpha": 1.0}),
    "Erf": Smooth(_compute_erf, {}),
    "Exp": Smooth(np.exp, {}),
    # The minimum of either form, to all relevant digits.
    "Gelu": Smooth(lambda x: 0.5 * x * (1 + _compute_erf(x / np.sqrt(2))), {}, (0.0, -0.7518)),
    "HardSigmoid": Smooth(_compute_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": Smooth(lambda x: x * _compute_hard_sigmoid(x, 1 / 6, 0.5), {}, (0.0, -3.0, -1.5)),
    "Mish": Smooth(lambda x: x * np.tanh(_compute_softplus(x)), {}, (0.0, -1.1924)),
    "Selu": Smooth(
        _compute_selu, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}
    ),
    "Sigmoid": Smooth(_compute_sigmoid, {}),
    "Softplus": Smooth(_compute_softplus, {}),
    "Softsign": Smooth(lambda x: x / (1 + np.abs(x)), {}),
    "Tanh": Smooth(np.tanh, {}),
}


def infer_smooth(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of a function of the table."""
    value = get_input(node, 0)
    x = view.get_abstract(value)
    if value is None or (x is None and not may_be_float32(value)):
        return None
    if x is None:
        x = make_unknown(value)
    form = FUNCTIONS[node.op_type]
    given_attributes = {
        name: get_attribute(node, name, default) for name, default in form.attributes.items()
    }

    def function(values: Array) -> Array:
        return form.compute(values.astype(np.float64), **given_attributes)

    points = list_points(x, None, turns=form.turns)
    sources = get_sources(value, x)
    result = map_points(points, function, (), nan=x.nan, margin=_MARGIN, sources=sources)
    # Bounds beyond float32 are infinite.
    low = np.where(exceeds_float32(result.lowest), -np.inf, result.lowest)
    high = np.where(exceeds_float32(result.highest), np.inf, result.highest)
    if np.isinf(low).all() and np.isinf(high).all():
        return None
    return replace(result, lowest=low, highest=high)


def infer_softmax(node: ir.Node, view: View) -> AbstractValue | None:
    """Return the result of Softmax: numbers from 0 to 1."""
    x = view.get_abstract(get_input(node, 0))
    return None if x is None or not x.bounded else from_interval(0, 1 + _MARGIN)
