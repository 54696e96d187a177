# SPDX-License-Identifier: Apache-2.0
"""What explains a difference, said only where it is evident."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from anybit.comparison.arrays import same_bits
from anybit.comparison.measure import differing_elements
from anybit.comparison.report.wording import value
from anybit.comparison.results import TensorDifference
from anybit.comparison.steps import Arrays
from anybit.onnx.operators.registry import operator_of
from anybit.onnx.quantizers.quantizer import inputs_of
from anybit.text import counted, shown

_LONGEST_VALUE = 40


def hints(
    found: TensorDifference,
    a: ir.Value | None,
    b: ir.Value | None,
    known_a: Arrays,
    known_b: Arrays,
) -> Iterator[str]:
    """What is known of the first difference, whose inputs are equal.

    `known_a` and `known_b` are all tensors of a side, by name.
    """
    ours, theirs = (None if each is None else each.producer() for each in (a, b))
    if ours is None:
        if a is not None:
            yield from _readers(a)
        return
    if theirs is not None and theirs.op_identifier() == ours.op_identifier():
        yield from _attributes(ours, theirs)
        yield from _parameters(ours, theirs, known_a, known_b)
    if _only_ties(found, ours, known_a):
        count = found.differing + found.within
        which = "the element that differs" if count == 1 else f"all {count} elements that differ"
        yield f"{which}: half-way between two steps before; the two sides round ties differently"


def hidden(ours: ir.Node, theirs: ir.Node, known_a: Arrays, known_b: Arrays) -> Iterator[str]:
    """In what two quantizers differ whose results are equal."""
    if not inputs_of(ours) or theirs.op_identifier() != ours.op_identifier():
        return
    if operator_of(ours) is not None:  # all attributes are written out
        yield from _attributes(ours, theirs)
    yield from _parameters(ours, theirs, known_a, known_b)


def _readers(constant: ir.Value) -> Iterator[str]:
    """What a stored tensor is for: the first of the nodes that read it."""
    readers = [(node, index) for node, index in constant.uses() if node.name]
    if not readers:
        return
    node, index = readers[0]
    names = ["x", *(each.name for each in inputs_of(node)[1:])]
    use = f" as its {names[index]}" if inputs_of(node) and index < len(names) else ""
    more = f", and {counted(len(readers) - 1, 'more node')}" if len(readers) > 1 else ""
    yield f"{node.op_type} {shown(node.name or '')} reads it{use}{more}"


def _parameters(ours: ir.Node, theirs: ir.Node, known_a: Arrays, known_b: Arrays) -> Iterator[str]:
    inputs = zip(inputs_of(ours)[1:], ours.inputs[1:], theirs.inputs[1:], strict=False)
    for declared, first, second in inputs:
        name = declared.name
        a = None if first is None else known_a.get(first.name or "")
        b = None if second is None else known_b.get(second.name or "")
        if a is None or b is None or same_bits(a, b):
            continue
        try:
            a, b = np.broadcast_arrays(a.astype(np.float64), b.astype(np.float64))
        except ValueError:
            yield f"{name} has the shape {list(a.shape)} in A and {list(b.shape)} in B"
            continue
        places = np.argwhere(differing_elements(a, b))
        if len(places):
            at = tuple(places[0].tolist())
            more = f" and {counted(len(places) - 1, 'more place')}" if len(places) > 1 else ""
            where = f" at {list(at)}{more}" if a.size > 1 else ""
            yield f"{name} is {value(a[at])} in A and {value(b[at])} in B{where}"


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


def _only_ties(found: TensorDifference, node: ir.Node, arrays: Arrays) -> bool:
    """Whether each differing element was half-way between the two results, one step apart."""
    given = next(iter(node.inputs), None)  # random numbers and constants have none
    x = None if given is None else arrays.get(given.name or "")
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
