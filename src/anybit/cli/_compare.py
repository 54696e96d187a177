# SPDX-License-Identifier: Apache-2.0
"""Compare outputs with expected ones."""

import sys
from collections.abc import Iterable, Mapping

import typer
from rich.console import Console

from anybit.comparison.arrays import Array, is_number
from anybit.comparison.measure import Tolerance, measure
from anybit.comparison.report.wording import value
from anybit.errors import ModelError
from anybit.inputs import matched


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
    differences = {
        name: difference
        for name, output in outputs.items()
        if (difference := _difference(output, pairs[name], atol))
    }
    if differences:
        said = "; ".join(f"output {name} {each}" for name, each in differences.items())
        # Against another shape or dtype no tolerance helps.
        by_value = any(each.startswith("differs") for each in differences.values())
        hint = " (--atol allows a difference)" if by_value and not atol else ""
        print("error:", said + hint, file=sys.stderr)
        raise typer.Exit(1)
    count = sum(output.size for output in outputs.values())
    allowance = f" within {atol:g}" if atol else " exactly"
    console.print(f"[green]as expected[/green]: all {count} elements agree{allowance}")


def expected_of(names: Iterable[str], expected: Mapping[str, Array]) -> dict[str, Array]:
    """What is expected of each output. ModelError for an output that nothing is given for."""
    names = list(names)
    found = matched(names, expected, "y")
    for name in names:
        if name not in found:
            given = ", ".join(expected) or "nothing"
            raise ModelError(f"--expect holds {given}, but not output {name}")
    return found


def _difference(output: Array, wanted: Array, atol: float) -> str | None:
    """How two arrays differ, or None."""
    if output.shape != wanted.shape:
        return f"has shape {list(output.shape)}, expected {list(wanted.shape)}"
    if not (is_number(output) and is_number(wanted)):
        return f"has dtype {output.dtype}, expected {wanted.dtype}"
    found = measure(output, wanted, None, Tolerance(steps=0, atol=atol))
    if not found.differing:
        return None
    worst = found.samples[0]
    return (
        f"differs in {found.differing} of {output.size} elements, most by "
        f"{found.largest:.6g} at {list(worst.index)}: got {value(worst.a)}, "
        f"expected {value(worst.b)}"
    )
