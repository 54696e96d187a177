# SPDX-License-Identifier: Apache-2.0
"""`anybit run`: run a model on arrays from files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from anybit.cli._console import get_stdout, show_percentage, show_status
from anybit.cli._engines import EngineOption, RunBy, load_model
from anybit.cli._files import check_overwrites
from anybit.cli._inputs import (
    InputsOption,
    ShapesOption,
    gather_inputs,
    get_input_paths,
    parse_shapes,
)
from anybit.errors import AnybitError, ModelError, OptionError
from anybit.text import escape_name, format_duration, format_shape, join_names

if TYPE_CHECKING:
    from anybit.model import Model
    from anybit.onnx.graph.constants import Array

ExpectedOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz",
        help="Expected outputs by name (`y` for a single output). Exit status 1 if they differ.",
    ),
]
OutputOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="OUT.npz", help="Write the outputs, by name."),
]
ExpectedAtolOption: TypeAlias = Annotated[
    float, typer.Option(min=0, metavar="X", help="Absolute tolerance of --expect.")
]

Top1: TypeAlias = Annotated[
    bool, typer.Option("--top1", help="Show the predicted class of each row.")
]
LabelsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE.txt|FILE.npy",
        help="Class names (text, one per line), or labels to score (integers).",
    ),
]


def run(
    model: Annotated[Path, typer.Argument(help="The .onnx file.")],
    inputs: InputsOption = None,
    shapes: ShapesOption = None,
    output: OutputOption = None,
    expect: ExpectedOption = None,
    atol: ExpectedAtolOption = 0.0,
    top1: Top1 = False,
    labels: LabelsOption = None,
    engine: EngineOption = RunBy.ONNXRUNTIME,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Number of runs to time.")] = 1,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Stop with an error if the runs take longer in total.",
        ),
    ] = None,
) -> None:
    """Run a model on given or random inputs and check its outputs.

    If the batch size is fixed, inputs with n times as many rows run in n calls.
    """
    from anybit.cli._outputs import (
        Labels,
        compare,
        describe_top_classes,
        match_expected,
        read_labels,
        write_arrays,
    )
    from anybit.data.array_files import read_arrays
    from anybit.data.random_inputs import (
        describe_random_inputs,
        generate_random_inputs,
        override_shapes,
        report_assumed_sizes,
    )

    console = get_stdout()
    _check_options(model, inputs, shapes, output, expect, labels, atol, timeout)
    expected = None if expect is None else read_arrays(expect)
    classes = Labels() if labels is None else read_labels(labels)
    with show_status("Loading", model):
        network = load_model(model, engine)
    if expected is not None:  # reported now, not after a long run
        match_expected([tensor.name for tensor in network.outputs], expected)
    declared = override_shapes(network.inputs, parse_shapes(shapes))
    feeds = gather_inputs(network, inputs) if inputs else generate_random_inputs(declared)
    with (
        report_assumed_sizes(() if inputs else declared),
        _limit_time(network, timeout) as check_time,
    ):
        times, outputs = _measure_runs(network, feeds, repeat, check_time)
    class_lines = list(describe_top_classes(outputs, classes, whole=top1 or labels is not None))
    if output is not None:
        write_arrays(output, outputs)
    console.print(_make_table(feeds, outputs))
    for line in class_lines:
        console.print(escape_name(line), markup=False, soft_wrap=True)
    console.print(_describe_timing(times))
    if not inputs:
        note = describe_random_inputs(declared)
        console.print(f"{note[0].upper()}{note[1:]}; --input gives others.", markup=False)
    if output is not None:
        console.print(f"written to {output}{_describe_storage(outputs)}", markup=False)
    if expected is not None:
        compare(outputs, expected, atol=atol, console=console)


def _check_options(
    model: Path,
    inputs: list[str] | None,
    shapes: list[str] | None,
    output: Path | None,
    expect: Path | None,
    labels: Path | None,
    atol: float,
    timeout: float | None,
) -> None:
    """Raise OptionError for options that contradict one another, before any work."""
    if output is not None and (output.suffix != ".npz" or not output.parent.is_dir()):
        raise OptionError(f"{output}: --output must be an .npz file in a folder that exists")
    read = [("MODEL", model), ("--expect", expect), ("--labels", labels)]
    check_overwrites([("--output", output)], [*read, *get_input_paths("--input", inputs)])
    if not atol >= 0:
        raise OptionError(f"--atol must be a number >= 0, got {atol}")
    if timeout is not None and not 0 < timeout <= threading.TIMEOUT_MAX:
        raise OptionError(f"--timeout must be a number of seconds > 0, got {timeout}")
    if inputs and shapes:
        raise OptionError("--shape is for random inputs; leave it out beside --input")


@contextmanager
def _limit_time(network: Model, seconds: float | None) -> Iterator[Callable[[], None]]:
    """Stop runs of the model after some seconds, and yield a check for the time between runs.

    ONNX Runtime is interrupted between two nodes, also in the body of a Loop.

    Raises:
        ModelError: The time is over.
    """
    import onnxruntime  # type: ignore[import-untyped]

    from anybit.model import RuntimeEngine

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
    except AnybitError as error:
        try:
            check_time()
        except ModelError as stopped:
            raise stopped from error
        raise
    finally:
        timer.cancel()


def _measure_runs(
    network: Model, feeds: dict[str, Array], repeat: int, check_time: Callable[[], None]
) -> tuple[list[float], dict[str, Array]]:
    """Return the seconds of each run, and the outputs."""
    times: list[float] = []
    outputs: dict[str, Array] = {}
    with show_percentage("Running") as advance:
        for index in range(repeat):
            start = time.perf_counter()
            outputs = network.run(
                feeds, progress=partial(_advance_within_run, advance, index / repeat, repeat)
            )
            times.append(time.perf_counter() - start)
            check_time()
            advance((index + 1) / repeat)
    return times, outputs


def _advance_within_run(
    advance: Callable[[float], None], before: float, repeat: int, slices: int, of: int
) -> None:
    """Report the progress of all runs after some slices of the current run."""
    advance(before + slices / of / repeat)


def _make_table(feeds: dict[str, Array], outputs: dict[str, Array]) -> Table:
    import numpy as np

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
            table.add_row(
                kind,
                escape(escape_name(name)),
                str(array.dtype),
                format_shape(array.shape),
                *limits,
            )
    return table


def _describe_storage(outputs: dict[str, Array]) -> str:
    """Return a note on outputs whose dtype NumPy lacks, which the file holds as another."""
    from anybit.inputs import to_numpy_dtype

    stored = {name: to_numpy_dtype(array).dtype for name, array in outputs.items()}
    changed = [
        f"{escape_name(name)} ({outputs[name].dtype}) as {dtype}"
        for name, dtype in stored.items()
        if dtype != outputs[name].dtype
    ]
    return f"; {join_names(changed)}" if changed else ""


def _describe_timing(times: list[float]) -> str:
    if len(times) == 1:
        return f"1 run, {format_duration(times[0])} (includes warm-up; see --repeat)"
    fastest, middle = format_duration(min(times)), format_duration(median(times))
    return f"{len(times)} runs, fastest {fastest}, median {middle}"
