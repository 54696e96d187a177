# SPDX-License-Identifier: Apache-2.0
"""Shapes that hardware targets require."""

from collections.abc import Iterator

from anybit import text
from anybit.onnx.checks.finding import Finding, make_error
from anybit.onnx.checks.subject import Subject
from anybit.onnx.quantizer_summary import get_shape


def check_dynamic_sizes(subject: Subject, target: str) -> Iterator[Finding]:
    """Yield inputs with sizes that are not fixed."""
    for value in subject.model.graph.inputs:
        if value.shape is None or not value.shape.is_static():
            shape = text.format_shape(get_shape(value))
            problem = f"input {value.name!r} has the shape {shape}; {target} needs fixed sizes"
            sizes = () if value.shape is None else value.shape[1:]
            batch_alone = value.shape is not None and all(isinstance(size, int) for size in sizes)
            remedy = f"run anybit clean --target {target.lower()}, which makes the batch 1"
            if not batch_alone:
                remedy = "export the model with fixed sizes"
            yield make_error(None, "dynamic-size", problem, remedy)
