# SPDX-License-Identifier: Apache-2.0
"""Hints: evident causes of a difference."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from anybit.comparison.measure import find_differing_elements
from anybit.comparison.report.wording import format_value
from anybit.comparison.results import TensorDifference
from anybit.comparison.steps import Arrays
from anybit.metrics.arrays import same_bits
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.quantizers.quantizer import get_declared_inputs
from anybit.text import escape_name, format_count

_MAX_VALUE_LENGTH = 40


def explain_first_difference(
    tensor: TensorDifference,
    a: ir.Value | None,
    b: ir.Value | None,
    arrays_a: Arrays,
    arrays_b: Arrays,
) -> Iterator[str]:
    """Yield the evident causes of the first difference, whose inputs are equal.

    `arrays_a` and `arrays_b` are all tensors of a side, by name.
    """
    node_a, node_b = (None if value is None else value.producer() for value in (a, b))
    if node_a is None:
        if a is not None:
            yield from _describe_constant(a, tensor)
        return
    if node_b is not None and node_b.op_identifier() == node_a.op_identifier():
        yield from _compare_attributes(node_a, node_b)
        yield from _compare_parameters(node_a, node_b, arrays_a, arrays_b)
    if _are_all_ties(tensor, node_a, arrays_a):
        count = tensor.differing + tensor.tolerated
        which = "the element that differs" if count == 1 else f"all {count} elements that differ"
        yield f"{which}: half-way between two steps; the two sides round ties differently"


def compare_parameters(a: ir.Node, b: ir.Node, arrays_a: Arrays, arrays_b: Arrays) -> Iterator[str]:
    """Yield the differences between the parameters of two quantizers of one operator."""
    if not get_declared_inputs(a) or b.op_identifier() != a.op_identifier():
        return
    if find_operator(a) is not None:  # all attributes are explicit
        yield from _compare_attributes(a, b)
    yield from _compare_parameters(a, b, arrays_a, arrays_b)


def _describe_constant(constant: ir.Value, tensor: TensorDifference) -> Iterator[str]:
    """Yield how many stored values differ, or the first node that has them as a parameter."""
    readers = [(node, index) for node, index in constant.uses() if node.name]
    if not readers:
        return
    node, index = readers[0]
    if index == 0 and get_declared_inputs(node):
        yield f"the stored values differ in {tensor.differing} of {tensor.a.size} elements"
        return
    names = ["x", *(parameter.name for parameter in get_declared_inputs(node)[1:])]
    use = f" as its {names[index]}" if get_declared_inputs(node) and index < len(names) else ""
    more = f", and {format_count(len(readers) - 1, 'more node')}" if len(readers) > 1 else ""
    yield f"{node.op_type} {escape_name(node.name or '')} reads it{use}{more}"


def _compare_parameters(
    node_a: ir.Node, node_b: ir.Node, arrays_a: Arrays, arrays_b: Arrays
) -> Iterator[str]:
    inputs = zip(
        get_declared_inputs(node_a)[1:], node_a.inputs[1:], node_b.inputs[1:], strict=False
    )
    for parameter, value_a, value_b in inputs:
        name = parameter.name
        a = None if value_a is None else arrays_a.get(value_a.name or "")
        b = None if value_b is None else arrays_b.get(value_b.name or "")
        if a is None or b is None or same_bits(a, b):
            continue
        try:
            a, b = np.broadcast_arrays(a.astype(np.float64), b.astype(np.float64))
        except ValueError:
            yield f"{name} has the shape {list(a.shape)} in A and {list(b.shape)} in B"
            continue
        indices = np.argwhere(find_differing_elements(a, b))
        if len(indices):
            index = tuple(indices[0].tolist())
            more = (
                f" and {format_count(len(indices) - 1, 'more place')}" if len(indices) > 1 else ""
            )
            where = f" at {list(index)}{more}" if a.size > 1 else ""
            values = f"{format_value(a[index])} in A and {format_value(b[index])} in B"
            yield f"{name} is {values}{where}"


def _compare_attributes(a: ir.Node, b: ir.Node) -> Iterator[str]:
    for name in sorted(a.attributes.keys() | b.attributes.keys()):
        values = [_format_attribute(node.attributes.get(name)) for node in (a, b)]
        if values[0] != values[1]:
            yield f"{name} is {values[0]} in A and {values[1]} in B"


def _format_attribute(attribute: ir.Attr | None) -> str:
    if attribute is None:
        return "not given"
    text = str(attribute.value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}..."


def _are_all_ties(tensor: TensorDifference, node: ir.Node, arrays: Arrays) -> bool:
    """Return whether all differing elements are rounded ties: half-way between adjacent steps."""
    value = next(iter(node.inputs), None)  # random numbers and constants have none
    x = None if value is None else arrays.get(value.name or "")
    if tensor.step is None or tensor.step.quantizer != "itself" or x is None:
        return False
    if not tensor.same_shape or x.shape != tensor.a.shape or x.dtype.kind != "f":
        return False
    if tensor.a.dtype.kind != "f" or tensor.b.dtype.kind != "f":
        return False
    epsilon = np.finfo(x.dtype).eps
    mask = find_differing_elements(tensor.a, tensor.b)
    step = tensor.step.select(mask)
    x, a, b = (array[mask].astype(np.float64) for array in (x, tensor.a, tensor.b))
    with np.errstate(all="ignore"):
        steps = np.abs(step.count_steps(a) - step.count_steps(b))
        # Products of codes and a scale are rounded, and so is the quantizer's division.
        slack = 2 * epsilon * np.maximum(np.abs(a), np.abs(b))
        half_way = np.abs(x - (a + b) / 2) <= slack
    return bool(np.all(half_way) and np.all(np.round(steps, 3) == 1))
