# SPDX-License-Identifier: Apache-2.0
"""Shapes that a file declares, held against those that follow from its inputs and constants."""

from collections.abc import Iterator

from anybit.onnx.checks.finding import Finding, error, warning
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.shapes import claims_more, contradicts, declarable, noted, sizes_of
from anybit.text import sizes


def findings(subject: Subject) -> Iterator[Finding]:
    """The first shape that cannot be true, and the first that is true for some inputs only."""
    following = {
        value.name: shape
        for value in declarable(subject.model)
        if (shape := noted(value)) is not None
    }
    declared = [
        (value, value.shape, following[value.name])
        for value in declarable(subject.file)
        if value.shape is not None and value.name in following
    ]
    for report, problem in ((error, contradicts), (warning, claims_more)):
        wrong = [each for each in declared if problem(each[2], each[1])]
        if wrong:
            value, *shapes = wrong[0]
            claimed, follows = (sizes(sizes_of(shape)) for shape in shapes)
            more = f" (and {len(wrong) - 1} more values)" if len(wrong) > 1 else ""
            yield report(
                value.producer(),
                "stale-shape",
                f"{value.name!r} is declared with the shape {claimed}, but has "
                f"{follows}{more}: ONNX Runtime's optimizer computes with what is declared",
                "run anybit clean",
            )
