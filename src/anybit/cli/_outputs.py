# SPDX-License-Identifier: Apache-2.0
"""Outputs of `anybit run`: predicted classes, comparison with expected arrays, .npz files."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import typer
from rich.console import Console

from anybit.cli._files import replacing
from anybit.comparison.measure import Tolerance, measure
from anybit.comparison.report.wording import format_value
from anybit.data.array_files import read_arrays, write_members
from anybit.errors import DataError
from anybit.inputs import match_arrays, to_numpy_dtype
from anybit.metrics.arrays import is_number
from anybit.onnx.graph.constants import Array
from anybit.text import format_count

_MOST_ROWS = 12


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz file of named arrays, which appears when it is complete.

    Dtypes that NumPy lacks are written as int8, uint8 or float32, which hold the same values.
    """
    with replacing(path) as file:
        write_members(file, {name: to_numpy_dtype(array) for name, array in arrays.items()})


@dataclass(frozen=True)
class Labels:
    """Labels of a classifier: class names by index, and the expected class of each row."""

    names: tuple[str, ...] = ()
    classes: Array | None = None


def read_labels(path: Path) -> Labels:
    """Read class names from a text file, or the classes of rows from an .npy or .npz file.

    Raises:
        DataError: The file cannot be read, or holds something else.
    """
    if path.suffix not in (".npy", ".npz"):
        try:
            return Labels(names=tuple(path.read_text(encoding="utf-8").splitlines()))
        except UnicodeDecodeError:
            raise DataError(f"{path}: --labels must be a text, .npy or .npz file") from None
    arrays = read_arrays(path)
    classes = next(iter(arrays.values())).squeeze() if len(arrays) == 1 else np.empty(0)
    if classes.dtype.kind not in "iu" or classes.ndim > 1:
        raise DataError(f"{path}: --labels must hold one array of integers, one per row")
    return Labels(classes=classes.reshape(-1))


def describe_top_classes(
    outputs: Mapping[str, Array], labels: Labels, *, whole: bool
) -> Iterator[str]:
    """Yield a line per classifier output with the class of all or the first rows, and the accuracy.

    Raises:
        DataError: The labels are for another number of rows or classes.
    """
    scores = {name: array for name, array in outputs.items() if _has_classes(array)}
    if whole and not scores:
        raise DataError("no output has rows of classes: --top1 and --labels need [rows, classes]")
    for name, array in scores.items():
        classes = array.argmax(axis=1)
        if labels.names and len(labels.names) != array.shape[1]:
            raise DataError(
                f"--labels has {format_count(len(labels.names), 'name')}, "
                f"output {name} {array.shape[1]} classes; give one name per class"
            )
        listed = classes if whole else classes[:_MOST_ROWS]
        words = [labels.names[index] if labels.names else str(index) for index in listed]
        more = ["..."] * (len(listed) < len(classes))
        yield f"arg max of {name}: {(', ' if labels.names else ' ').join(words + more)}"
        if labels.classes is not None:
            yield _format_accuracy(name, classes, labels.classes)


def _format_accuracy(name: str, predicted: Array, expected: Array) -> str:
    if len(expected) != len(predicted):
        raise DataError(
            f"--labels has {format_count(len(expected), 'label')}, output {name} has "
            f"{len(predicted)} rows; give one label per row"
        )
    correct = int(np.count_nonzero(predicted == expected))
    rows = len(expected)
    return f"{name}: {correct} of {format_count(rows, 'row')} correct, {100 * correct / rows:.2f} %"


def _has_classes(array: Array) -> bool:
    return array.ndim == 2 and array.shape[1] > 1 and array.size > 0


def compare(
    outputs: Mapping[str, Array], expected: Mapping[str, Array], *, atol: float, console: Console
) -> None:
    """Print that all outputs are as expected, or print the differences on stderr and exit with 1.

    An output is compared with the array of its name. The only output of a model is also compared
    with `y`, or with the only array. NaN equals NaN, and 0 equals -0.

    Raises:
        DataError: There is no expected array for an output.
    """
    pairs = match_expected(outputs, expected)
    differences = {
        name: difference
        for name, output in outputs.items()
        if (difference := _describe_difference(output, pairs[name], atol))
    }
    if differences:
        text = "; ".join(f"output {name} {words}" for name, words in differences.items())
        # No tolerance helps against another shape or dtype.
        by_value = any(words.startswith("differs") for words in differences.values())
        hint = " (--atol allows a difference)" if by_value and not atol else ""
        print("error:", text + hint, file=sys.stderr)
        raise typer.Exit(1)
    count = sum(output.size for output in outputs.values())
    allowance = f" within {atol:g}" if atol else " exactly"
    console.print(f"[green]as expected[/green]: all {count} elements agree{allowance}")


def match_expected(names: Iterable[str], expected: Mapping[str, Array]) -> dict[str, Array]:
    """Return the expected array of each output.

    Raises:
        DataError: There is none for an output.
    """
    names = list(names)
    pairs = match_arrays(names, expected, "y")
    for name in names:
        if name not in pairs:
            held = ", ".join(expected) or "nothing"
            raise DataError(f"--expect holds {held}, but not output {name}")
    return pairs


def _describe_difference(output: Array, expected: Array, atol: float) -> str | None:
    """Return a description of how two arrays differ, or None."""
    if output.shape != expected.shape:
        return f"has shape {list(output.shape)}, expected {list(expected.shape)}"
    if not (is_number(output) and is_number(expected)):
        return f"has dtype {output.dtype}, expected {expected.dtype}"
    difference = measure(output, expected, None, Tolerance(steps=0, atol=atol))
    if not difference.differing:
        return None
    worst = difference.samples[0]
    return (
        f"differs in {difference.differing} of {output.size} elements, most by "
        f"{difference.largest:.6g} at {list(worst.index)}: got {format_value(worst.a)}, "
        f"expected {format_value(worst.b)}"
    )
