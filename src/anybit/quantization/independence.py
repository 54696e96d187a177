# SPDX-License-Identifier: Apache-2.0
"""Whether a model computes rows one by one."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from anybit.errors import ModelError
from anybit.inputs import Array
from anybit.quantization.items import Sample

Run: TypeAlias = Callable[[Sample], Mapping[str, Array]]


def independent(run: Run) -> Callable[[Sample, Sample, Sample], bool | None]:
    """Whether two samples give together what they give apart: for `Samples.take_whole_unless`.

    None where only one can be given at a time.
    """

    def same(first: Sample, second: Sample, both: Sample) -> bool | None:
        try:
            apart = [run(each) for each in (first, second)]
        except ModelError:  # a number of rows that a constant inside fixes
            return False
        try:
            joined = run(both)
        except ModelError:  # the number is 1
            return None
        return all(
            array.ndim > 0 and _alike(np.concatenate([each[name] for each in apart]), array)
            for name, array in joined.items()
        )

    return same


def _alike(a: Array, b: Array) -> bool:
    if a.dtype.kind != "f" or a.shape != b.shape:
        return np.array_equal(a, b)
    most = float(np.abs(a[np.isfinite(a)]).max(initial=0))
    return np.allclose(a, b, rtol=1e-3, atol=1e-3 * most, equal_nan=True)
