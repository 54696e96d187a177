# SPDX-License-Identifier: Apache-2.0
"""`anybit run`: run a model on arrays from files."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, TypeAlias

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from anybit.cli import _arrays
from anybit.cli._compare import compare, expected_of
from anybit.cli._console import stdout, working
from anybit.cli._inputs import gather_inputs
from anybit.errors import ModelError
from anybit.inputs import Array, random_inputs
from anybit.model import Model, load
from anybit.text import shown

_SECONDS_BEFORE_PROGRESS = 0.5


Inputs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="FILE.npy, FILE.npz (arrays by input name; `x` for a single input) or NAME=FILE.npy; "
        "may be repeated. Without it, random numbers are used.",
    ),
]
Expected: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz",
        help="Compare with these outputs (by name; `y` for a single output); exit 1 if they "
        "differ.",
    ),
]
Output: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="OUT.npz", help="Write the outputs by name.")
]
Tolerance: TypeAlias = Annotated[
    float, typer.Option(min=0, help="The difference that `--expect` allows; none by default.")
]


def run(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    inputs: Inputs = None,
    output: Output = None,
    expect: Expected = None,
    atol: Tolerance = 0.0,
    repeat: Annotated[int, typer.Option(min=1, help="Run so often and show the times.")] = 1,
) -> None:
    """Run a model.

    Where the model fixes the number of rows, the rows of the input are run slice by slice.
    """
    console = stdout()
    if output is not None and (output.suffix != ".npz" or not output.parent.is_dir()):
        raise ModelError(f"{output}: --output must be an .npz file in a folder that exists")
    if not atol >= 0:
        raise ModelError(f"--atol must be a number >= 0, got {atol}")
    expected = None if expect is None else _arrays.read_arrays(expect)
    with working("Loading", model):
        network = load(model)
    if expected is not None:  # found out now, not after a long run
        expected_of([each.name for each in network.outputs], expected)
    feeds = gather_inputs(network, inputs) if inputs else random_inputs(network.inputs)
    times, outputs = _timed(network, feeds, repeat)
    if output is not None:
        _arrays.write_arrays(output, outputs)
    console.print(_table(feeds, outputs))
    for name, array in outputs.items():
        if places := _largest_at(array):
            console.print(f"{shown(name)} is largest at {places}", markup=False, highlight=False)
    console.print(_timing(times))
    if not inputs:
        console.print("The inputs are random numbers (seed 0); --input gives others.")
    if output is not None:
        console.print(f"written to {output}", markup=False, highlight=False)
    if expected is not None:
        compare(outputs, expected, atol=atol, console=console)


def _timed(
    network: Model, feeds: dict[str, Array], repeat: int
) -> tuple[list[float], dict[str, Array]]:
    """The seconds of each run, and the outputs, with a progress bar if it takes long."""
    console = Console(stderr=True)
    times: list[float] = []
    outputs: dict[str, Array] = {}
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        advance = _delayed(bar, repeat)
        for index in range(repeat):
            start = time.perf_counter()
            outputs = network.run(feeds, progress=partial(_share, advance, index))
            times.append(time.perf_counter() - start)
            advance(index + 1)
    return times, outputs


def _share(advance: Callable[[float], None], runs: int, slices: int, of: int) -> None:
    advance(runs + slices / of)


def _delayed(bar: Progress, total: float) -> Callable[[float], None]:
    """A function that shows how much is done, once that has taken a while."""
    task = bar.add_task("Running", total=total, visible=False)
    next_time = time.perf_counter() + _SECONDS_BEFORE_PROGRESS

    def advance(done: float) -> None:
        nonlocal next_time
        now = time.perf_counter()
        if now > next_time:
            bar.update(task, completed=done, visible=True)
            next_time = now + 0.1

    return advance


def _table(feeds: dict[str, Array], outputs: dict[str, Array]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("", "name", "type", "shape"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "name")
    for heading in ("smallest", "largest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, arrays in (("input", feeds), ("output", outputs)):
        for name, array in arrays.items():
            shape = " x ".join(map(str, array.shape))
            limits = [
                f"{float(pick(array)):.6g}" if array.size else "" for pick in (np.min, np.max)
            ]
            table.add_row(kind, escape(shown(name)), str(array.dtype), shape, *limits)
    return table


def _largest_at(array: Array) -> str:
    """The index of the largest value in each row: what a classifier predicts."""
    if array.ndim != 2 or array.shape[1] < 2 or not array.size:
        return ""
    shown = 12
    rows = [str(index) for index in array[:shown].argmax(axis=1)]
    return " ".join(rows + ["..."] * (len(array) > shown))


def _timing(times: list[float]) -> str:
    if len(times) == 1:
        return f"1 run, {_duration(times[0])} (the first is the slowest; --repeat N times more)"
    return f"{len(times)} runs, fastest {_duration(min(times))}, median {_duration(median(times))}"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
