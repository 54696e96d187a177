# SPDX-License-Identifier: Apache-2.0
"""The inputs of both sides: the same arrays under the names of each side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anybit.comparison.sides.network import LoadedNetwork
from anybit.errors import ModelError, prefix_errors
from anybit.inputs import (
    Feeds,
    TensorInfo,
    bind_batches,
    check_shape,
    convert_array,
    require_elements,
    select_run,
)
from anybit.onnx.graph.constants import Array


@dataclass(frozen=True)
class Rows:
    """The first `run` rows of the inputs are run, of `total`."""

    total: int
    run: int

    @property
    def note(self) -> str:
        return f"the inputs have {self.total} rows; the first {self.run} were run"

    def of(self, array: Array) -> Array:
        """Return an array cut to these rows, if it has one row per row of the inputs."""
        return array[: self.run] if array.ndim and len(array) == self.total else array


def pair_inputs(a: LoadedNetwork, b: LoadedNetwork) -> list[tuple[TensorInfo, TensorInfo]]:
    """Pair the inputs of two networks: by name if all names agree, else by position.

    Raises:
        ModelError: The models have different numbers of inputs.
    """
    if len(a.inputs) != len(b.inputs):
        names = [
            ", ".join(tensor.name for tensor in network.inputs) or "none" for network in (a, b)
        ]
        raise ModelError(
            f"the models take different inputs: {a.label} {names[0]}; {b.label} {names[1]}"
        )
    by_name = {tensor.name: tensor for tensor in b.inputs}
    if all(tensor.name in by_name for tensor in a.inputs):
        return [(tensor, by_name[tensor.name]) for tensor in a.inputs]
    return list(zip(a.inputs, b.inputs, strict=True))


def unify_inputs(pairs: Iterable[tuple[TensorInfo, TensorInfo]]) -> list[TensorInfo]:
    """Return the inputs of A, with the sizes that only B fixes."""
    return [replace(a, shape=_unify_shapes(a, b)) for a, b in pairs]


def _unify_shapes(a: TensorInfo, b: TensorInfo) -> tuple[int | str | None, ...] | None:
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return b.shape if a.shape is None else a.shape
    sizes = zip(a.shape, b.shape, strict=True)
    return tuple(size_a if isinstance(size_a, int) else size_b for size_a, size_b in sizes)


def select_feeds_of_a(
    inputs: Sequence[TensorInfo], arrays: Feeds
) -> tuple[dict[str, Array], Rows | None]:
    """Return the arrays under A's names and in A's types, and their rows if not all are run.

    Raises:
        DataError: A name is missing or unknown, an array does not fit the model, or there are no
            elements.
    """
    feeds, slices = bind_batches(inputs, arrays)
    require_elements(inputs, feeds)
    if slices == 1:
        return feeds, None
    first = select_run(feeds, 0, slices)
    name = next(tensor.name for tensor in inputs if tensor.rows is not None)
    return first, Rows(len(feeds[name]), len(first[name]))


def select_feeds_of_b(
    feeds: Mapping[str, Array], pairs: Iterable[tuple[TensorInfo, TensorInfo]], label: str
) -> dict[str, Array]:
    """Return the inputs of B, made from the inputs of A. Messages name B by its label.

    Raises:
        DataError: An array does not fit B.
    """
    renamed = {}
    for a, b in pairs:
        with prefix_errors(f"{label}: "):
            renamed[b.name] = convert_array(feeds[a.name], b)
            check_shape(b, renamed[b.name])
    return renamed
