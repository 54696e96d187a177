# SPDX-License-Identifier: Apache-2.0
"""Opsets of the standard operators that expansions consist of."""

from collections.abc import Iterable

from anybit.ops import Operator

# Where, Clip for integers and Cast to bfloat16 in the form that the expansions use.
STANDARD_OPSET = 13
# ReduceMax with axes as an input.
_BLOCK_OPSET = 18


def find_expansion_opset(operators: Iterable[Operator]) -> int:
    """Return the lowest opset with what the expansions of operators use; 1 without any."""
    return max(
        (STANDARD_OPSET if one.block_axis is None else _BLOCK_OPSET for one in operators), default=1
    )
