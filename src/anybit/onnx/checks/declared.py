# SPDX-License-Identifier: Apache-2.0
"""Declared shapes, compared with those inferred from inputs and constants."""

from collections.abc import Iterator

from anybit.onnx.checks.finding import Finding, make_error, make_warning
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.shapes import (
    claims_more,
    contradicts,
    get_inferred_shape,
    get_sizes,
    iter_declarable,
)
from anybit.text import format_shape


def check(subject: Subject) -> Iterator[Finding]:
    """Yield the first wrong shape, and the first one that is true for some inputs only."""
    inferred = {
        value.name: shape
        for value in iter_declarable(subject.model)
        if (shape := get_inferred_shape(value)) is not None
    }
    declared = [
        (value, value.shape, inferred[value.name])
        for value in iter_declarable(subject.file)
        if value.shape is not None and value.name in inferred
    ]
    for report, problem in ((make_error, contradicts), (make_warning, claims_more)):
        wrong = [entry for entry in declared if problem(entry[2], entry[1])]
        if wrong:
            value, *shapes = wrong[0]
            claimed, actual = (format_shape(get_sizes(shape)) for shape in shapes)
            more = f" (and {len(wrong) - 1} more values)" if len(wrong) > 1 else ""
            yield report(
                value.producer(),
                "stale-shape",
                f"{value.name!r} is declared with the shape {claimed}, but has "
                f"{actual}{more}: ONNX Runtime's optimizer uses the declared shape",
                "run anybit clean",
            )
