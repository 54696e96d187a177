# SPDX-License-Identifier: Apache-2.0
"""`anybit run`: run a model on arrays from files."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, TypeAlias

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from anybit.array_files import read_arrays
from anybit.cli._arrays import write_arrays
from anybit.cli._classes import Labels, read_labels, top_classes
from anybit.cli._compare import compare, expected_of
from anybit.cli._console import percentage, stdout, working
from anybit.cli._engines import Engine, RunBy
from anybit.cli._files import check_overwrites
from anybit.cli._inputs import Inputs, Shapes, gather_inputs, input_paths, sizes_given
from anybit.errors import ModelError
from anybit.evaluation.scoring import ENGINES
from anybit.inputs import Array, in_numpy_dtype
from anybit.made_up_inputs import (
    made_up_note,
    naming_made_up_sizes,
    random_inputs,
    with_sizes,
)
from anybit.model import Model, RuntimeEngine
from anybit.text import duration, listed, shown, sizes

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
    float, typer.Option(min=0, metavar="X", help="The difference that `--expect` allows.")
]

Top1: TypeAlias = Annotated[
    bool, typer.Option("--top1", help="Show the class of each row: where the largest output is.")
]
LabelFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="Names of the classes, FILE.txt with one per line, to show classes by; or the right "
        "class of each row, FILE.npy with one integer per row, to count how many are right.",
    ),
]


def run(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    inputs: Inputs = None,
    shapes: Shapes = None,
    output: Output = None,
    expect: Expected = None,
    atol: Tolerance = 0.0,
    top1: Top1 = False,
    labels: LabelFile = None,
    engine: Engine = RunBy.ONNXRUNTIME,
    repeat: Annotated[
        int, typer.Option(min=1, metavar="N", help="Run this many times and show the times.")
    ] = 1,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Stop with an error if all runs together take longer, as for a Loop without end.",
        ),
    ] = None,
) -> None:
    """Run a model on given or random inputs, and compare what it gives with what is expected.

    Where the model fixes the number of rows, the rows of the input are run slice by slice.
    """
    console = stdout()
    if output is not None and (output.suffix != ".npz" or not output.parent.is_dir()):
        raise ModelError(f"{output}: --output must be an .npz file in a folder that exists")
    read = [("MODEL", model), ("--expect", expect), ("--labels", labels)]
    check_overwrites([("--output", output)], [*read, *input_paths("--input", inputs)])
    if not atol >= 0:
        raise ModelError(f"--atol must be a number >= 0, got {atol}")
    if timeout is not None and not 0 < timeout <= threading.TIMEOUT_MAX:
        raise ModelError(f"--timeout must be a number of seconds > 0, got {timeout}")
    if inputs and shapes:
        raise ModelError("--shape is for random inputs; leave it out beside --input")
    expected = None if expect is None else read_arrays(expect)
    known = Labels() if labels is None else read_labels(labels)
    with working("Loading", model):
        network = ENGINES[engine](model)
    if expected is not None:  # found out now, not after a long run
        expected_of([each.name for each in network.outputs], expected)
    declared = with_sizes(network.inputs, sizes_given(shapes))
    feeds = gather_inputs(network, inputs) if inputs else random_inputs(declared)
    with (
        naming_made_up_sizes(() if inputs else declared),
        _limited(network, timeout) as check_time,
    ):
        times, outputs = _timed(network, feeds, repeat, check_time)
    classes = list(top_classes(outputs, known, whole=top1 or labels is not None))
    if output is not None:
        write_arrays(output, outputs)
    console.print(_table(feeds, outputs))
    for line in classes:
        console.print(shown(line), markup=False, soft_wrap=True)
    console.print(_timing(times))
    if not inputs:
        note = made_up_note(declared)
        console.print(f"{note[0].upper()}{note[1:]}; --input gives others.", markup=False)
    if output is not None:
        console.print(f"written to {output}{_stored_as(outputs)}", markup=False)
    if expected is not None:
        compare(outputs, expected, atol=atol, console=console)


@contextmanager
def _limited(network: Model, seconds: float | None) -> Iterator[Callable[[], None]]:
    """Stop runs of the model after some seconds, and yield a check for the time between runs.

    ONNX Runtime is interrupted between two nodes, also in the body of a Loop.

    Raises:
        ModelError: The time is over.
    """
    if seconds is None:
        yield lambda: None
        return
    options = onnxruntime.RunOptions()
    over = threading.Event()

    def stop() -> None:
        over.set()
        options.terminate = True

    def check_time() -> None:
        if over.is_set():
            raise ModelError(
                f"the run was stopped after {seconds:g} seconds (--timeout); allow more time, or "
                "look for a Loop that does not end"
            )

    if isinstance(network.engine, RuntimeEngine):
        network.engine.run_options = options
    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield check_time
    except ModelError as error:
        try:
            check_time()
        except ModelError as stopped:
            raise stopped from error
        raise
    finally:
        timer.cancel()


def _timed(
    network: Model, feeds: dict[str, Array], repeat: int, check_time: Callable[[], None]
) -> tuple[list[float], dict[str, Array]]:
    """The seconds of each run, and the outputs."""
    times: list[float] = []
    outputs: dict[str, Array] = {}
    with percentage("Running") as advance:
        for index in range(repeat):
            start = time.perf_counter()
            outputs = network.run(feeds, progress=partial(_share, advance, index / repeat, repeat))
            times.append(time.perf_counter() - start)
            check_time()
            advance((index + 1) / repeat)
    return times, outputs


def _share(
    advance: Callable[[float], None], before: float, repeat: int, slices: int, of: int
) -> None:
    advance(before + slices / of / repeat)


def _table(feeds: dict[str, Array], outputs: dict[str, Array]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("", "name", "type", "shape"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "name")
    for heading in ("smallest", "largest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kind, arrays in (("input", feeds), ("output", outputs)):
        for name, array in arrays.items():
            limits = [
                f"{float(pick(array)):.6g}" if array.size else "" for pick in (np.min, np.max)
            ]
            table.add_row(kind, escape(shown(name)), str(array.dtype), sizes(array.shape), *limits)
    return table


def _stored_as(outputs: dict[str, Array]) -> str:
    """The types that stand in the file for those that NumPy lacks."""
    stored = {name: in_numpy_dtype(array).dtype for name, array in outputs.items()}
    changed = [
        f"{shown(name)} ({outputs[name].dtype}) as {dtype}"
        for name, dtype in stored.items()
        if dtype != outputs[name].dtype
    ]
    return f"; {listed(changed)}" if changed else ""


def _timing(times: list[float]) -> str:
    if len(times) == 1:
        return f"1 run, {duration(times[0])} (the first is the slowest; --repeat N times more)"
    return f"{len(times)} runs, fastest {duration(min(times))}, median {duration(median(times))}"
