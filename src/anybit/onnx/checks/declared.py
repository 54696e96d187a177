# SPDX-License-Identifier: Apache-2.0
"""Shapes that a file declares, held against those that follow from its inputs and constants."""

from collections.abc import Iterator

import onnx_ir as ir

from anybit.onnx.checks.finding import Finding, error, warning
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.shapes import claims_more, contradicts, declarable, noted
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
    for tell, problem in ((error, contradicts), (warning, claims_more)):
        wrong = [each for each in declared if problem(each[2], each[1])]
        if wrong:
            value, claimed, follows = wrong[0]
            more = f" (and {len(wrong) - 1} more values)" if len(wrong) > 1 else ""
            yield tell(
                value.producer(),
                "stale-shape",
                f"{value.name!r} is declared with the shape {_shown(claimed)}, but has "
                f"{_shown(follows)}{more}: ONNX Runtime's optimizer computes with what is declared",
                "run anybit clean",
            )


def _shown(shape: ir.Shape) -> str:
    return sizes(each if isinstance(each, int) else each.value for each in shape)
