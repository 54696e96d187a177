# SPDX-License-Identifier: Apache-2.0
"""From `--input` options to one array per input of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Protocol, TypeAlias

import typer

from anybit.array_files import read_arrays
from anybit.errors import ModelError
from anybit.inputs import Array, Tensor, matched

Inputs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="FILE.npy, FILE.npz (arrays by input name; `x` for a single input) or NAME=FILE.npy; "
        "may be repeated. Without it, random numbers are used.",
    ),
]
Shapes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=N,N,...",
        help="The shape of a random input, as x=1,3,320,320; may be repeated. Without it, free "
        "sizes are 1.",
    ),
]


# More elements than that no input has.
_LARGEST_SIZE = 2**31 - 1
Ranges: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input-range",
        metavar="NAME=RANGE",
        help="What an input holds: x=uint8 (integers of a type), x=uint8/255 or x=int8*0.5 (the "
        "same times a float32 scale), x=-1,1 (any numbers between); may be repeated.",
    ),
]


class TakesInputs(Protocol):
    """A model, as far as its inputs go."""

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...


def gather_inputs(model: TakesInputs, options: Sequence[str]) -> dict[str, Array]:
    """The arrays that the options name, by input.

    Names in a file that are not inputs are passed over, so that one .npz may hold inputs and
    expected outputs. A model with one input takes `x`, an .npy, or the only array of an .npz.

    Raises:
        ModelError: An input that no option gives, or one that two give.
    """
    names = [each.name for each in model.inputs]
    found: dict[str, Array] = {}
    for option in options:
        name, path = _split(option)
        arrays = read_arrays(path)
        if name is not None:
            if name not in names or len(arrays) != 1:
                what = f"holds {len(arrays)} arrays" if name in names else "is not an input"
                raise ModelError(f"--input {option}: {name} {what}; inputs: {', '.join(names)}")
            arrays = {name: next(iter(arrays.values()))}
        given = matched(names, arrays, "x")
        if not given:
            held = ", ".join(name or "one array without a name" for name in arrays) or "nothing"
            inputs = ", ".join(names)
            raise ModelError(f"--input {option} holds {held}; the model's inputs are {inputs}")
        twice = found.keys() & given.keys()
        if twice:
            raise ModelError(f"--input {option}: {', '.join(sorted(twice))} is given twice")
        found |= given
    missing = [name for name in names if name not in found]
    if missing:
        raise ModelError(f"no --input gives {', '.join(missing)}; pass NAME=FILE.npy")
    return found


def input_paths(name: str, options: Sequence[str] | None) -> list[tuple[str, Path | None]]:
    """Return the option's name and the file of each of its values, FILE or NAME=FILE."""
    return [(name, _split(option)[1]) for option in options or ()]


def _split(option: str) -> tuple[str | None, Path]:
    if "=" not in option or Path(option).exists():
        return None, Path(option)
    # Names have no "=" as a rule, paths may.
    name, _, path = option.partition("=")
    return name, Path(path)


def sizes_given(options: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """The shapes that the options name, by input.

    Raises:
        ModelError: One that is not a name and sizes.
    """
    found = {}
    for option in options or ():
        name, separator, sizes = option.rpartition("=")
        texts = sizes.split(",")
        if not separator or not all(each.isdecimal() for each in texts):
            raise ModelError(f"--shape must be NAME=N,N,... such as x=1,3,320,320, got {option!r}")
        if name in found:
            raise ModelError(f"--shape: {name!r} is said twice")
        found[name] = tuple(_size(each, name) for each in texts)
    return found


def _size(text: str, name: str) -> int:
    # Python refuses to read the longest numbers.
    size = int(text) if len(text) < 100 else _LARGEST_SIZE + 1
    if not 1 <= size <= _LARGEST_SIZE:
        given = text if len(text) < 40 else f"a number of {len(text)} digits"
        raise ModelError(f"--shape {name}: sizes must be from 1 to {_LARGEST_SIZE}, got {given}")
    return size
