# SPDX-License-Identifier: Apache-2.0
"""Sizes that the networks of `networks.py` compute themselves, in the ways of several exporters."""

from collections.abc import Sequence

import numpy as np
from network_builder import Builder, Tensor
from onnx import TensorProto


def computed_sizes(builder: Builder, x: Tensor, row: Sequence[int]) -> str:
    """Return the shape of the rows of x followed by these sizes; one of them may be -1."""
    rest = builder.constant([-1, *row[1:]] if builder.chance(3) else row, np.int64)
    return builder.node("Concat", [_rows(builder, x), rest], axis=0)


def _rows(builder: Builder, x: Tensor) -> str:
    """How many rows x has, or the input, as a tensor of one size."""
    of = builder.one_of(x.name, x.name, "x")
    short = builder.chance(2)
    if not short and builder.chance(3):
        return builder.node("Shape", [of], start=0, end=1)
    sizes = builder.node("Shape", [of])
    if short:
        sizes = builder.node("Cast", [sizes], to=TensorProto.INT32)
    zero, one = (builder.constant([each], np.int64) for each in (0, 1))
    kind = builder.one_of("Slice", "Gather", "Unsqueeze")
    if kind == "Slice":
        found = builder.node("Slice", [sizes, zero, one, zero, one])
    elif kind == "Gather":
        found = builder.node("Gather", [sizes, zero])
    else:
        number = builder.node("Gather", [sizes, builder.constant(0, np.int64)])
        found = builder.node("Unsqueeze", [number, zero])
    return builder.node("Cast", [found], to=TensorProto.INT64) if short else found
