# SPDX-License-Identifier: Apache-2.0
"""The inputs of both sides: one set of arrays, whatever each side calls them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anybit.comparison.arrays import Array
from anybit.comparison.sides.network import Network
from anybit.errors import ModelError, prefixed
from anybit.inputs import Feeds, Tensor, check_shape, converted, fitted, slice_of


@dataclass(frozen=True)
class Rows:
    """The first `taken` of the `given` rows of the inputs are run."""

    given: int
    taken: int

    @property
    def note(self) -> str:
        return f"the inputs have {self.given} rows; the first {self.taken} were run"

    def of(self, array: Array) -> Array:
        """The rows of an array that has one per row of the inputs; other arrays as they are."""
        return array[: self.taken] if array.ndim and len(array) == self.given else array


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


def given_inputs(inputs: Sequence[Tensor], given: Feeds) -> tuple[dict[str, Array], Rows | None]:
    """The arrays by A's names, as A's types, and which rows of what was given they are.

    Raises:
        DataError: A name is missing or unknown, or an array does not fit the model.
    """
    feeds, slices = fitted(inputs, given)
    if slices == 1:
        return feeds, None
    first = slice_of(feeds, 0, slices)
    name = next(each.name for each in inputs if each.rows is not None)
    return first, Rows(len(feeds[name]), len(first[name]))


def renamed(
    feeds: Mapping[str, Array], pairs: Iterable[tuple[Tensor, Tensor]], label: str
) -> dict[str, Array]:
    """Return the inputs of B from those of A. Messages name B by its label.

    Raises:
        DataError: An array does not fit B.
    """
    renamed_feeds = {}
    for ours, theirs in pairs:
        with prefixed(f"{label}: "):
            array = converted(feeds[ours.name], theirs)
            check_shape(theirs, array)
        renamed_feeds[theirs.name] = array
    return renamed_feeds
