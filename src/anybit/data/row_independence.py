# SPDX-License-Identifier: Apache-2.0
"""Whether a model computes rows one by one."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from anybit.data.readers import Sample, make_batch_key
from anybit.errors import AnybitError
from anybit.inputs import Array

Run: TypeAlias = Callable[[Sample], Mapping[str, Array]]

# So many bytes of samples that have other shapes are kept, to find one of the same.
_KEPT = 2**28


def make_independence_test(run: Run) -> Callable[[Sample, Sample, Sample], bool | None]:
    """Whether two samples give together what they give apart: for `Dataset.take_whole_unless`.

    None where only one can be given at a time. Outputs without rows, such as a shape, say nothing;
    False if all of them do.
    """

    def same(first: Sample, second: Sample, both: Sample) -> bool | None:
        try:
            apart = [run(each) for each in (first, second)]
        except AnybitError:  # a number of rows that a constant inside fixes
            return False
        try:
            joined = run(both)
        except AnybitError:  # the number is 1
            return None
        both_ways = [([each[name] for each in apart], array) for name, array in joined.items()]
        with_rows = [
            (parts, array)
            for parts, array in both_ways
            if array.ndim and len(array) == sum(len(each) for each in parts)
        ]
        return bool(with_rows) and all(_gives(parts, array) for parts, array in with_rows)

    return same


def find_differing_pair(
    samples: Iterable[Sample], rows: Collection[str]
) -> tuple[Sample, Sample, Sample] | None:
    """Two samples that differ in inputs that have rows, and both in one; None if none are found."""
    seen: dict[Hashable, Sample] = {}
    held = 0
    for sample in samples:
        first = seen.get(kind := make_batch_key(sample, rows), sample)
        if kind not in seen and held <= _KEPT:
            seen[kind] = sample
            held += sum(array.nbytes for array in sample.values())
        if not all(np.array_equal(first[name], sample[name]) for name in rows):
            joined = {name: np.concatenate([first[name], sample[name]]) for name in rows}
            return first, sample, sample | joined
    return None


def _gives(parts: Sequence[Array], whole: Array) -> bool:
    same = all(each.shape[1:] == whole.shape[1:] for each in parts)
    return same and _alike(np.concatenate(parts), whole)


def _alike(a: Array, b: Array) -> bool:
    if a.dtype.kind != "f" or a.shape != b.shape:
        return np.array_equal(a, b)
    most = float(np.abs(a[np.isfinite(a)]).max(initial=0))
    return np.allclose(a, b, rtol=1e-3, atol=1e-3 * most, equal_nan=True)
