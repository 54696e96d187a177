# SPDX-License-Identifier: Apache-2.0
"""Remark on inputs that never change, so that the result may be wrong for other values."""

from itertools import islice

import numpy as np

from anybit.data.dataset import Dataset
from anybit.text import escape_name, join_names

# The most samples that are compared.
_SEARCHED = 256


def describe_constant_inputs(samples: Dataset) -> tuple[str, ...]:
    """Return the remark on inputs that are the same in all samples, or in the first of many.

    Integer inputs beside others that change are masks and token types, which often stay the same.
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
    names = join_names(map(escape_name, striking))
    subject = f"Input {names} is" if len(striking) == 1 else f"Inputs {names} are"
    count = f"all {len(samples)}" if len(samples) <= _SEARCHED else f"the first {_SEARCHED}"
    return (
        f"{subject} the same in {count} samples: neither ranges nor the verdict hold for other "
        "values. Give samples that differ.",
    )
