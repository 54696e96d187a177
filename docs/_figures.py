# SPDX-License-Identifier: Apache-2.0
"""Pictures of operators: the result over x, and its difference from x."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from _svg import Line, Panel, Points, drawing

from anybit import formats
from anybit.ops import Operator, RoundingMode
from anybit.ops.int_quant import int_quant

# Jumps of an operator are located to within this share of the picture's width.
_SAMPLES = 1024
_HALVINGS = 12

Curve = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Setting:
    """One curve: the operator's parameters after x, in words and in numbers."""

    label: str
    parameters: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """Contents of a figure: an operator's result for some settings, and errors up to `error`.

    `meaning` gives the number that a result stands for, where that is not the result itself.
    Where x are codes, of `x_type`, results have no error. With a `neighbor`, x is an element of a
    block whose other one it is.
    """

    settings: tuple[Setting, ...]
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    error: float
    x_step: float = 1
    x_type: type[np.generic] = np.float32
    y_step: float = 1
    meaning: Curve | None = None
    neighbor: float | None = None


FIGURES = {
    "int_quant": Figure(
        (
            Setting("3 bits signed, scale 0.5", (0.5, 0, 3)),
            Setting("unsigned", (0.5, 0, 3), {"signed": False}),
        ),
        x_range=(-4, 5),
        y_range=(-3, 4),
        error=1,
    ),
    "float_quant": Figure(
        (
            Setting("float4_e2m1fn", (1.0, *formats.float4_e2m1fn)),
            Setting("the same, FLOOR", (1.0, *formats.float4_e2m1fn), {"rounding_mode": "FLOOR"}),
        ),
        x_range=(-8, 8),
        y_range=(-7, 7),
        error=2,
    ),
    "trunc": Figure(
        (
            Setting("to scale 4 and 4 bits, FLOOR", (1.0, 0, 8, 4.0, 4)),
            Setting("ROUND", (1.0, 0, 8, 4.0, 4), {"rounding_mode": "ROUND"}),
        ),
        x_range=(-40, 36),
        y_range=(-40, 36),
        error=8,
        x_step=8,
        y_step=8,
    ),
    "trunc_v1": Figure(
        (
            Setting("8 to 6 bits, FLOOR", (1.0, 0, 8, 6)),
            Setting("ROUND", (1.0, 0, 8, 6), {"rounding_mode": "ROUND"}),
        ),
        x_range=(-40, 36),
        y_range=(-12, 12),
        error=32,
        x_step=8,
        y_step=4,
    ),
    "bipolar_quant": Figure(
        (Setting("scale 1", (1.0,)),), x_range=(-3, 3), y_range=(-2, 2), error=2
    ),
    "dynamic_quantize": Figure(
        (
            Setting(
                "u8, scale 0.25, zero-point 10",
                (np.float32([0.25]), np.int32([10])),
                {"dtype": "u8"},
            ),
        ),
        x_range=(-4, 4),
        y_range=(-2, 28),
        error=1,
        y_step=4,
        meaning=lambda code: (code - 10) * 0.25,
    ),
    "dynamic_dequantize": Figure(
        (Setting("scale 0.25, zero-point 2", (np.float32([0.25]), np.int32([2]))),),
        x_range=(-16, 16),
        y_range=(-5, 4),
        error=0,
        x_step=8,
        x_type=np.int8,
    ),
    "block_quant": Figure(
        (
            Setting("mxfp4, in a block with 7", (), {"format": "mxfp4"}),
            Setting("int4, in a block with 7", (), {"format": "int4"}),
        ),
        x_range=(-7, 7),
        y_range=(-8, 8),
        error=2,
        neighbor=7,
    ),
}


def operator_figure(operator: Operator) -> str:
    """Return the result over x, and below it the error."""
    chosen = FIGURES[operator.name]
    results, errors = [], []
    for setting, kind in zip(chosen.settings, ("first", "second"), strict=False):
        call = partial(_call, operator, setting)
        curve = staircase(call, chosen.x_range)
        meaning = chosen.meaning or (lambda result: result)
        results.append(Line(curve, kind, setting.label))
        errors.append(Line([(x, meaning(y) - x) for x, y in curve], kind))
    plain = chosen.meaning is None and chosen.error > 0
    guides = (Line([(x, x) for x in chosen.x_range], "guide", "x"),) if plain else ()
    top = Panel(
        (*guides, *reversed(results)),
        chosen.x_range,
        chosen.y_range,
        chosen.x_step,
        chosen.y_step,
        label="result, an integer" if chosen.meaning else "result",
        width=640,
        height=280,
    )
    words = "; ".join(setting.label for setting in chosen.settings)
    title = f"{operator.onnx_name}, version {operator.version}: {shown_of(operator)}"
    if not chosen.error:
        return drawing([top], 1, title, words)
    bottom = Panel(
        tuple(reversed(errors)),
        chosen.x_range,
        (-chosen.error, chosen.error),
        chosen.x_step,
        chosen.error / 2,
        label="what it stands for \N{MINUS SIGN} x"
        if chosen.meaning
        else "result \N{MINUS SIGN} x",
        width=640,
        height=120,
    )
    return drawing([top, bottom], 1, title, words)


def shown_of(operator: Operator) -> str:
    """Return the description of an operator's figure in words."""
    return "result and error over x" if FIGURES[operator.name].error else "result over codes"


def rounding_figure() -> str:
    """Return the seven rounding modes side by side; dots show where ties go."""
    x_range = (-3.0, 3.0)
    ties = np.arange(-2.5, 3).astype(np.float32)
    panels = []
    for mode in RoundingMode:
        setting = Setting(mode.value, (1.0, 0, 8), {"rounding_mode": mode})
        call = partial(_call, int_quant.operator, setting)
        lines = (Line([(x, x) for x in x_range], "guide"), Line(staircase(call, x_range), "first"))
        dots = [(float(x), float(y)) for x, y in zip(ties, call(ties), strict=True)]
        panels.append(Panel(lines, x_range, x_range, 1, 1, mode.value, 150, 150, dots))
    return drawing(panels, 4, "The seven rounding modes", "The rounded value over the value")


def _call(operator: Operator, setting: Setting, x: np.ndarray) -> np.ndarray:
    kind = np.dtype(FIGURES[operator.name].x_type)
    x = (np.rint(x) if kind.kind == "i" else x).astype(kind)
    neighbor = FIGURES[operator.name].neighbor
    if neighbor is not None:
        blocks = np.stack([x, np.full_like(x, neighbor)], axis=-1)
        return operator.function(blocks, *setting.parameters, **setting.attributes)[:, 0]
    return operator.function(x, *setting.parameters, **setting.attributes)


def staircase(function: Curve, x_range: tuple[float, float]) -> Points:
    """Return the corners of a step function of float32."""
    x = np.linspace(*x_range, _SAMPLES + 1).astype(np.float32)
    y = function(x)
    before = np.flatnonzero(y[1:] != y[:-1])
    low, high = x[before], x[before + 1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        jumped = function(middle) != y[before]
        low, high = np.where(jumped, low, middle), np.where(jumped, middle, high)
    corners = [(float(x[0]), float(y[0]))]
    for at, index in zip(high, before, strict=True):
        corners += [(float(at), float(y[index])), (float(at), float(y[index + 1]))]
    return [*corners, (float(x[-1]), float(y[-1]))]
