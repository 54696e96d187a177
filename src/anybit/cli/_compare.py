# SPDX-License-Identifier: Apache-2.0
"""Compare outputs with expected ones."""

import sys
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console

from anybit.errors import ModelError

Array: TypeAlias = npt.NDArray[Any]


def compare(
    outputs: Mapping[str, Array], expected: Mapping[str, Array], *, atol: float, console: Console
) -> None:
    """Print that all outputs are as expected, or say on stderr how they differ and exit with 1.

    An output is compared with the array of its name; that of a model with one output also with
    `y`, or with the only array there is. NaN equals NaN, and 0 equals -0.

    Raises:
        ModelError: An output that nothing is given for.
    """
    pairs = [(name, output, _wanted(name, outputs, expected)) for name, output in outputs.items()]
    differences = [
        f"output {name} {difference}"
        for name, output, wanted in pairs
        if (difference := _difference(output, wanted, atol))
    ]
    if differences:
        print("error:", "; ".join(differences), file=sys.stderr)
        raise typer.Exit(1)
    count = sum(output.size for output in outputs.values())
    allowance = f" within {atol:g}" if atol else " exactly"
    console.print(f"[green]as expected[/green]: all {count} elements agree{allowance}")


def _wanted(name: str, outputs: Mapping[str, Array], expected: Mapping[str, Array]) -> Array:
    if name in expected:
        return expected[name]
    if len(outputs) == 1:
        if "y" in expected:
            return expected["y"]
        if len(expected) == 1:
            return next(iter(expected.values()))
    raise ModelError(f"--expect holds {', '.join(expected) or 'nothing'}, but not output {name}")


def _difference(output: Array, wanted: Array, atol: float) -> str | None:
    """How two arrays differ, or None."""
    if output.shape != wanted.shape:
        return f"has shape {list(output.shape)}, expected {list(wanted.shape)}"
    if not {output.dtype.kind, wanted.dtype.kind} <= set("fiub"):
        return f"has dtype {output.dtype}, expected {wanted.dtype}"
    got, meant = output.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(got - meant)
    distance[(got == meant) | (np.isnan(got) & np.isnan(meant))] = 0
    distance[np.isnan(distance)] = np.inf  # NaN against a number
    wrong = distance > atol
    if not wrong.any():
        return None
    at = np.unravel_index(distance.argmax(), distance.shape)
    place = [int(index) for index in at]
    return (
        f"differs in {np.count_nonzero(wrong)} of {wrong.size} elements, most by "
        f"{distance[at]:.6g} at {place}: got {output[at]:.9g}, expected {wanted[at]:.9g}"
    )
