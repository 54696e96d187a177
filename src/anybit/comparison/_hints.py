# SPDX-License-Identifier: Apache-2.0
"""What explains a difference, said only where it is evident."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from anybit.comparison._arrays import Array
from anybit.comparison._measure import differing_elements
from anybit.comparison._results import TensorDifference

_LONGEST_VALUE = 40


def hints(
    found: TensorDifference,
    a: ir.Value | None,
    b: ir.Value | None,
    arrays: Mapping[str, Array],
) -> Iterator[str]:
    """What can be told of the first difference, whose inputs are equal."""
    ours, theirs = (None if value is None else value.producer() for value in (a, b))
    if ours is None:
        return
    if theirs is not None and theirs.op_identifier() == ours.op_identifier():
        yield from _attributes(ours, theirs)
    if _only_ties(found, ours, arrays):
        count = found.differing + found.within
        which = "the element that differs" if count == 1 else f"all {count} elements that differ"
        yield f"{which}: half-way between two steps before; the two sides round ties differently"


def _attributes(ours: ir.Node, theirs: ir.Node) -> Iterator[str]:
    for name in sorted(ours.attributes.keys() | theirs.attributes.keys()):
        values = [_shown(node.attributes.get(name)) for node in (ours, theirs)]
        if values[0] != values[1]:
            yield f"{name} is {values[0]} in A and {values[1]} in B"


def _shown(attribute: ir.Attr | None) -> str:
    if attribute is None:
        return "not given"
    text = str(attribute.value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _only_ties(found: TensorDifference, node: ir.Node, arrays: Mapping[str, Array]) -> bool:
    """Whether each differing element was half-way between the two results, one step apart."""
    x = None if node.inputs[0] is None else arrays.get(node.inputs[0].name or "")
    if found.step is None or found.step.quantizer != "itself" or x is None:
        return False
    if not found.same_shape or x.shape != found.a.shape or x.dtype.kind != "f":
        return False
    if found.a.dtype.kind != "f" or found.b.dtype.kind != "f":
        return False
    mask = differing_elements(found.a, found.b)
    step = found.step.at(mask)
    before, ours, theirs = (each[mask].astype(np.float64) for each in (x, found.a, found.b))
    with np.errstate(all="ignore"):
        apart = np.abs(step.positions(ours) - step.positions(theirs))
        # Products of codes and a scale are rounded, and so is the quantizer's division.
        slack = 2 * np.finfo(x.dtype).eps * np.maximum(np.abs(ours), np.abs(theirs))
        half_way = np.abs(before - (ours + theirs) / 2) <= slack
    return bool(np.all(half_way) and np.all(np.round(apart, 3) == 1))
