# SPDX-License-Identifier: Apache-2.0
"""Versions of programs: the least one that has a record."""

from typing import Any

from anybit.compiler.program import program as p

VERSION = 8  # the newest; a file has the least version that has all its records
FIRST_VERSION = 2  # of records that are not in SINCE

SINCE: dict[type[Any], int] = {
    **dict.fromkeys((p.Scaled, p.Piecewise, p.FloatTensor, p.Elementwise), 3),
    **dict.fromkeys((p.DynamicScale, p.DynamicZero, p.DynamicQuantize), 4),
    **dict.fromkeys((p.MatMul, p.Softmax, p.LayerNorm), 4),
    p.SpatialMean: 5,
    p.BlockProduct: 6,
    p.AsymmetricBlockProduct: 8,
}
"""The least version of a program with these records."""

SINCE_OPERATION: dict[int, int] = {p.Operation.SIGMOID: 5, p.Operation.GELU: 7}
"""The same with these operations in steps."""
