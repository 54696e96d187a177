# SPDX-License-Identifier: Apache-2.0
"""Test whether a model computes the rows of a batch independently of each other."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from anybit.data.readers import Sample, make_batch_key
from anybit.errors import AnybitError
from anybit.onnx.graph.constants import Array

Run: TypeAlias = Callable[[Sample], Mapping[str, Array]]
IndependenceTest: TypeAlias = Callable[[Sample, Sample, Sample], bool | None]
"""A function of two samples and their concatenation, for `Dataset.verify_row_independence`."""

_MAX_KEPT_BYTES = 2**28
"""Bytes of samples of different shapes that are kept until another one has the same shape."""
_TOLERANCE = 1e-3
"""The tolerance of floats, relative to the element and to the largest magnitude."""


def make_independence_test(run: Run) -> IndependenceTest:
    """Return a function that tests whether a model computes two samples independently.

    It returns None if the model takes only one sample at a time. Outputs without rows, such as a
    shape, are ignored; without any other output the result is False.
    """

    def test(first: Sample, second: Sample, both: Sample) -> bool | None:
        try:
            separate = [run(sample) for sample in (first, second)]
        except AnybitError:  # a constant of the model fixes the number of rows
            return False
        try:
            joined = run(both)
        except AnybitError:  # that number is 1
            return None
        pairs = [([outputs[name] for outputs in separate], array) for name, array in joined.items()]
        with_rows = [
            (parts, array)
            for parts, array in pairs
            if array.ndim and len(array) == sum(len(part) for part in parts)
        ]
        return bool(with_rows) and all(_equals_parts(parts, array) for parts, array in with_rows)

    return test


def find_differing_pair(
    samples: Iterable[Sample], split_inputs: Collection[str]
) -> tuple[Sample, Sample, Sample] | None:
    """Return two samples that differ in `split_inputs`, and both concatenated; None without any."""
    first_by_key: dict[Hashable, Sample] = {}
    kept_bytes = 0
    for sample in samples:
        first = first_by_key.get(key := make_batch_key(sample, split_inputs), sample)
        if key not in first_by_key and kept_bytes <= _MAX_KEPT_BYTES:
            first_by_key[key] = sample
            kept_bytes += sum(array.nbytes for array in sample.values())
        if not all(np.array_equal(first[name], sample[name]) for name in split_inputs):
            joined = {name: np.concatenate([first[name], sample[name]]) for name in split_inputs}
            return first, sample, sample | joined
    return None


def _equals_parts(parts: Sequence[Array], whole: Array) -> bool:
    same = all(part.shape[1:] == whole.shape[1:] for part in parts)
    return same and _is_close(np.concatenate(parts), whole)


def _is_close(a: Array, b: Array) -> bool:
    if a.dtype.kind != "f" or a.shape != b.shape:
        return np.array_equal(a, b)
    largest = float(np.abs(a[np.isfinite(a)]).max(initial=0))
    return np.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * largest, equal_nan=True)
