# SPDX-License-Identifier: Apache-2.0
"""The options `--input`, `--shape` and `--input-range`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeAlias

import typer

from anybit.errors import DataError, OptionError

if TYPE_CHECKING:
    from anybit.inputs import TensorInfo
    from anybit.onnx.graph.constants import Array

InputsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Inputs: FILE.npz, FILE.npy or NAME=FILE.npy (default: random numbers). Repeatable.",
    ),
]
ShapesOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=N,N,...",
        help="Shape of a random input, e.g. x=1,3,320,320 (default: 1 for dynamic sizes). "
        "Repeatable.",
    ),
]

RangesOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input-range",
        metavar="NAME=RANGE",
        help="Range of an input: x=uint8, x=uint8/255, x=int8*0.5 or x=-1,1. Repeatable.",
    ),
]


_LARGEST_SIZE = 2**31 - 1


class TakesInputs(Protocol):
    """Anything with the inputs of a model."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]: ...


def gather_inputs(
    model: TakesInputs, arguments: Sequence[str], option: str = "--input"
) -> dict[str, Array]:
    """Read the arrays that the arguments of an option name, by input.

    Names in a file that are not inputs are ignored, so that one .npz may hold inputs and expected
    outputs. A model with one input takes `x`, an .npy, or the only array of an .npz.

    Raises:
        DataError: An input has no array, or two.
    """
    from anybit.data.array_files import read_arrays
    from anybit.inputs import match_arrays

    names = [tensor.name for tensor in model.inputs]
    inputs = ", ".join(names)
    feeds: dict[str, Array] = {}
    for argument in arguments:
        name, path = _split(argument)
        arrays = read_arrays(path)
        if name is not None:
            if name not in names or len(arrays) != 1:
                problem = f"holds {len(arrays)} arrays" if name in names else "is not an input"
                raise DataError(f"{option} {argument}: {name} {problem}; inputs: {inputs}")
            arrays = {name: next(iter(arrays.values()))}
        matches = match_arrays(names, arrays, "x")
        if not matches:
            held = ", ".join(name or "one array without a name" for name in arrays) or "nothing"
            raise DataError(f"{option} {argument} holds {held}; the model's inputs are {inputs}")
        twice = feeds.keys() & matches.keys()
        if twice:
            raise DataError(f"{option} {argument}: {', '.join(sorted(twice))} is given twice")
        feeds |= matches
    missing = [name for name in names if name not in feeds]
    if missing:
        raise DataError(f"no {option} gives {', '.join(missing)}; pass NAME=FILE.npy")
    return feeds


def get_input_paths(name: str, options: Sequence[str] | None) -> list[tuple[str, Path | None]]:
    """Return the option's name and the file of each of its values, FILE or NAME=FILE."""
    return [(name, _split(option)[1]) for option in options or ()]


def _split(option: str) -> tuple[str | None, Path]:
    if "=" not in option or Path(option).exists():
        return None, Path(option)
    # Names have no "=" as a rule, paths may.
    name, _, path = option.partition("=")
    return name, Path(path)


def parse_shapes(options: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `--shape` options, by input.

    Raises:
        OptionError: An option is not a name and sizes.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for option in options or ():
        name, separator, sizes = option.rpartition("=")
        texts = sizes.split(",")
        if not separator or not all(text.isdecimal() for text in texts):
            raise OptionError(f"--shape must be NAME=N,N,... such as x=1,3,320,320, got {option!r}")
        if name in shapes:
            raise OptionError(f"--shape: {name!r} is given twice")
        shapes[name] = tuple(_parse_size(text, name) for text in texts)
    return shapes


def _parse_size(text: str, name: str) -> int:
    # Python refuses to parse the longest numbers.
    size = int(text) if len(text) < 100 else _LARGEST_SIZE + 1
    if not 1 <= size <= _LARGEST_SIZE:
        value = text if len(text) < 40 else f"a number of {len(text)} digits"
        raise OptionError(f"--shape {name}: sizes must be from 1 to {_LARGEST_SIZE}, got {value}")
    return size
