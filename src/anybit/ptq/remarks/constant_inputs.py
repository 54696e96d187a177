# SPDX-License-Identifier: Apache-2.0
"""Inputs that never change: neither ranges nor the verdict hold for other values of theirs."""

from itertools import islice

import numpy as np

from anybit.data.dataset import Dataset
from anybit.text import listed, shown

# So many samples are compared.
_SEARCHED = 256


def unchanging(samples: Dataset) -> tuple[str, ...]:
    """What is to be said of inputs that are the same in all samples, or in the first of many.

    Integers among others that change are masks and kinds of tokens, which often stay.
    """
    first = next(iter(samples))
    if len(samples) < 2:
        return ()
    same, striking = list(first), list(first)
    for sample in islice(samples, 1, _SEARCHED):
        same = [name for name in same if np.array_equal(first[name], sample[name])]
        every = len(same) == len(first)
        striking = [name for name in same if every or first[name].dtype.kind == "f"]
        if not striking:
            return ()
    names = listed(map(shown, striking))
    what = f"Input {names} is" if len(striking) == 1 else f"Inputs {names} are"
    count = f"all {len(samples)}" if len(samples) <= _SEARCHED else f"the first {_SEARCHED}"
    return (
        f"{what} the same in {count} samples: neither ranges nor the verdict hold for other "
        "values. Give samples that differ.",
    )
