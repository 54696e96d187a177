# SPDX-License-Identifier: Apache-2.0
"""Compare outputs with expected ones."""

import sys
from collections.abc import Iterable, Mapping
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
    pairs = expected_of(outputs, expected)
    differences = [
        f"output {name} {difference}"
        for name, output in outputs.items()
        if (difference := _difference(output, pairs[name], atol))
    ]
    if differences:
        hint = "" if atol else " (--atol allows a difference)"
        print("error:", "; ".join(differences) + hint, file=sys.stderr)
        raise typer.Exit(1)
    count = sum(output.size for output in outputs.values())
    allowance = f" within {atol:g}" if atol else " exactly"
    console.print(f"[green]as expected[/green]: all {count} elements agree{allowance}")


def expected_of(names: Iterable[str], expected: Mapping[str, Array]) -> dict[str, Array]:
    """What is expected of each output. ModelError for an output that nothing is given for."""
    names = list(names)
    found = {name: expected[name] for name in names if name in expected}
    if not found and len(names) == 1:
        only = expected.get("y", next(iter(expected.values())) if len(expected) == 1 else None)
        found = {} if only is None else {names[0]: only}
    for name in names:
        if name not in found:
            given = ", ".join(expected) or "nothing"
            raise ModelError(f"--expect holds {given}, but not output {name}")
    return found


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
    wrong = ~(distance <= atol)
    if not wrong.any():
        return None
    at = np.unravel_index(distance.argmax(), distance.shape)
    place = [int(index) for index in at]
    return (
        f"differs in {np.count_nonzero(wrong)} of {wrong.size} elements, most by "
        f"{distance[at]:.6g} at {place}: got {output[at]:.9g}, expected {wanted[at]:.9g}"
    )
