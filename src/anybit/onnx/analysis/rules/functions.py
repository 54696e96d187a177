# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements that each runtime approximates in its own way: bounds only.

Behind a tensor of codes they are functions of one code, and before a quantizer they become tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from anybit.onnx.analysis.carriers import Carrier, of_interval
from anybit.onnx.analysis.points import image, points_of
from anybit.onnx.analysis.rules.elementwise import sources_of
from anybit.onnx.analysis.sums import beyond_float32
from anybit.onnx.analysis.view import View, given, is_float, unknown
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array

# No runtime is so far off.
_MARGIN = 2.0**-12


@dataclass(frozen=True)
class Smooth:
    """A function in float64, its attributes with their defaults, and where it turns."""

    compute: Callable[..., Array]
    attributes: Mapping[str, float]
    turns: tuple[float, ...] = (0.0,)


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _erf(x: Array) -> Array:
    # Good to 1.5e-7 (Abramowitz and Stegun 7.1.26); the margin is wider.
    t = 1 / (1 + 0.3275911 * np.abs(x))
    coefficients = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    polynomial = np.zeros_like(t)
    for each in coefficients:
        polynomial = (polynomial + each) * t
    return np.asarray(np.sign(x) * (1 - polynomial * np.exp(-x * x)))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    return np.where(x < 0, gamma * alpha * np.expm1(np.minimum(x, 0)), gamma * x)


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha))


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


FUNCTIONS: dict[str, Smooth] = {
    "Atan": Smooth(np.arctan, {}),
    "Celu": Smooth(_celu, {"alpha": 1.0}),
    "Elu": Smooth(_elu, {"alpha": 1.0}),
    "Erf": Smooth(_erf, {}),
    "Exp": Smooth(np.exp, {}),
    # The smallest value of either form lies there, to all digits that count.
    "Gelu": Smooth(lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))), {}, (0.0, -0.7518)),
    "HardSigmoid": Smooth(_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": Smooth(lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5), {}, (0.0, -3.0, -1.5)),
    "Mish": Smooth(lambda x: x * np.tanh(_softplus(x)), {}, (0.0, -1.1924)),
    "Selu": Smooth(_selu, {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "Sigmoid": Smooth(_sigmoid, {}),
    "Softplus": Smooth(_softplus, {}),
    "Softsign": Smooth(lambda x: x / (1 + np.abs(x)), {}),
    "Tanh": Smooth(np.tanh, {}),
}


def smooth(node: ir.Node, view: View) -> Carrier | None:
    """A function of the table."""
    value = given(node, 0)
    x = view.carrier(value)
    if value is None or (x is None and not is_float(value)):
        return None
    if x is None:
        x = unknown(value)
    form = FUNCTIONS[node.op_type]
    given_attributes = {
        name: attribute_of(node, name, default) for name, default in form.attributes.items()
    }

    def function(values: Array) -> Array:
        return form.compute(values.astype(np.float64), **given_attributes)

    points = points_of(x, None, turns=form.turns)
    sources = sources_of(value, x)
    found = image(points, function, (), nan=x.nan, margin=_MARGIN, sources=sources)
    # A bound that float32 does not hold is none.
    low = np.where(beyond_float32(found.lowest), -np.inf, found.lowest)
    high = np.where(beyond_float32(found.highest), np.inf, found.highest)
    if np.isinf(low).all() and np.isinf(high).all():
        return None
    return replace(found, lowest=low, highest=high)


def share(node: ir.Node, view: View) -> Carrier | None:
    """Softmax: numbers from 0 to 1."""
    x = view.carrier(given(node, 0))
    return None if x is None or not x.bounded else of_interval(0, 1 + _MARGIN)
