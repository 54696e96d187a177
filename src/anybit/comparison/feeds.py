# SPDX-License-Identifier: Apache-2.0
"""The inputs of both sides: one set of arrays, whatever each side calls them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from anybit.comparison.arrays import Array
from anybit.comparison.sides.network import Network
from anybit.errors import ModelError
from anybit.model import Feeds
from anybit.tensors import Tensor, converted, misfit

# 8 GiB of float32: more is a mistake in the model rather than a wish.
_MOST_RANDOM_ELEMENTS = 2**31


@dataclass(frozen=True)
class Rows:
    """The first `taken` of the `given` rows of the inputs are run."""

    given: int
    taken: int

    def of(self, array: Array) -> Array:
        """The rows of an array that has one per row of the inputs; other arrays as they are."""
        return array[: self.taken] if array.ndim and len(array) == self.given else array


def random_inputs(inputs: Iterable[Tensor]) -> dict[str, Array]:
    """Normally distributed numbers (0 and 1 for integers) from seed 0; free sizes are 1.

    Raises:
        ModelError: An input without a declared shape, or of one that is too large to make up.
    """
    generator = np.random.default_rng(0)
    return {each.name: _random(generator, each) for each in inputs}


def _random(generator: np.random.Generator, declared: Tensor) -> Array:
    if declared.shape is None:
        raise ModelError(f"input {declared.name!r} has no declared shape: pass --input")
    shape = [size if isinstance(size, int) else 1 for size in declared.shape]
    if math.prod(shape) > _MOST_RANDOM_ELEMENTS:
        raise ModelError(f"input {declared.name!r} of shape {shape} is too large to make up")
    if declared.dtype.kind == "f":
        return generator.standard_normal(shape, dtype=np.float32).astype(declared.dtype)
    return generator.integers(0, 2, shape).astype(declared.dtype)


def input_pairs(a: Network, b: Network) -> list[tuple[Tensor, Tensor]]:
    """The inputs that belong together: by name if all of them do, else by position.

    Raises:
        ModelError: The models have different numbers of inputs.
    """
    if len(a.inputs) != len(b.inputs):
        names = [", ".join(each.name for each in side.inputs) or "none" for side in (a, b)]
        raise ModelError(
            f"the models take different inputs: {a.label} {names[0]}; {b.label} {names[1]}"
        )
    named = {each.name: each for each in b.inputs}
    if all(each.name in named for each in a.inputs):
        return [(each, named[each.name]) for each in a.inputs]
    return list(zip(a.inputs, b.inputs, strict=True))


def common_inputs(pairs: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """The inputs of A, with the sizes that only B fixes."""
    return [replace(ours, shape=_common_shape(ours, theirs)) for ours, theirs in pairs]


def _common_shape(ours: Tensor, theirs: Tensor) -> tuple[int | str | None, ...] | None:
    if ours.shape is None or theirs.shape is None or len(ours.shape) != len(theirs.shape):
        return theirs.shape if ours.shape is None else ours.shape
    sizes = zip(ours.shape, theirs.shape, strict=True)
    return tuple(our if isinstance(our, int) else their for our, their in sizes)


def given_inputs(inputs: list[Tensor], given: Feeds) -> tuple[dict[str, Array], Rows | None]:
    """The arrays by A's names, as A's types, and which rows of what was given they are.

    Raises:
        ModelError: A missing or unknown name, or an array that does not fit the model.
    """
    names = ", ".join(each.name for each in inputs) or "none"
    if not isinstance(given, Mapping):
        if len(inputs) != 1:
            raise ModelError(f"the model takes {len(inputs)} inputs: pass a dict of {names}")
        given = {inputs[0].name: given}
    wrong = given.keys() ^ {each.name for each in inputs}
    if wrong:
        which = ", ".join(sorted(map(str, wrong)))
        raise ModelError(f"the model takes the inputs {names}; missing or not known: {which}")
    feeds = {each.name: converted(given[each.name], each) for each in inputs}
    rows = _rows(inputs, feeds)
    if rows is not None:
        feeds = {name: rows.of(array) for name, array in feeds.items()}
    for each in inputs:
        check_shape(each, feeds[each.name])
    return feeds, rows


def _rows(inputs: list[Tensor], feeds: Mapping[str, Array]) -> Rows | None:
    for each in inputs:
        array, fixed = feeds[each.name], each.shape[0] if each.shape else None
        if array.ndim and isinstance(fixed, int) and len(array) > fixed:
            return Rows(len(array), fixed)
    return None


def check_shape(declared: Tensor, array: Array) -> None:
    """ModelError if the array has another shape than the declared one."""
    if declared.shape is None:
        return
    fits = array.ndim == len(declared.shape) and all(
        size == wanted or not isinstance(wanted, int)
        for size, wanted in zip(array.shape, declared.shape, strict=True)
    )
    if not fits:
        raise ModelError(misfit(declared, array))


def renamed(
    feeds: Mapping[str, Array], pairs: Iterable[tuple[Tensor, Tensor]], label: str
) -> dict[str, Array]:
    """The inputs of B, from those of A. Messages name B by its label.

    Raises:
        ModelError: An array that does not fit B.
    """
    found = {}
    for ours, theirs in pairs:
        try:
            found[theirs.name] = converted(feeds[ours.name], theirs)
            check_shape(theirs, found[theirs.name])
        except ModelError as error:
            raise ModelError(f"{label}: {error}") from error
    return found
