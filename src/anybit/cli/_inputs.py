# SPDX-License-Identifier: Apache-2.0
"""From `--input` options to one array per input of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from anybit.cli._arrays import read_arrays
from anybit.errors import ModelError
from anybit.inputs import Array, Tensor


class TakesInputs(Protocol):
    """A model, as far as its inputs go."""

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...


def gather_inputs(model: TakesInputs, options: Sequence[str]) -> dict[str, Array]:
    """The arrays that the options name, by input.

    Names in a file that are no inputs are passed over, so that one .npz may hold inputs and
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
                what = f"holds {len(arrays)} arrays" if name in names else "is no input"
                raise ModelError(f"--input {option}: {name} {what}; inputs: {', '.join(names)}")
            arrays = {name: next(iter(arrays.values()))}
        given = _matched(arrays, names, option)
        twice = found.keys() & given.keys()
        if twice:
            raise ModelError(f"--input {option}: {', '.join(sorted(twice))} is given twice")
        found |= given
    missing = [name for name in names if name not in found]
    if missing:
        raise ModelError(f"no --input gives {', '.join(missing)}; pass NAME=FILE.npy")
    return found


def _split(option: str) -> tuple[str | None, Path]:
    if "=" not in option or Path(option).exists():
        return None, Path(option)
    # Names have no "=" as a rule, paths may.
    name, _, path = option.partition("=")
    return name, Path(path)


def _matched(arrays: dict[str, Array], names: list[str], option: str) -> dict[str, Array]:
    matched = {name: arrays[name] for name in names if name in arrays}
    if matched:
        return matched
    if len(names) == 1:
        if "x" in arrays:
            return {names[0]: arrays["x"]}
        if len(arrays) == 1:
            return {names[0]: next(iter(arrays.values()))}
    held = ", ".join(name or "one array without a name" for name in arrays) or "nothing"
    raise ModelError(f"--input {option} holds {held}; the model's inputs are {', '.join(names)}")
