# SPDX-License-Identifier: Apache-2.0
"""What targets that build hardware ask of shapes."""

from collections.abc import Iterator

from anybit.onnx.checks.finding import Finding, error
from anybit.onnx.checks.subject import Subject


def free_sizes(subject: Subject, target: str) -> Iterator[Finding]:
    """Inputs whose sizes are not all fixed."""
    for value in subject.model.graph.inputs:
        if value.shape is None or not value.shape.is_static():
            shape = "unknown" if value.shape is None else f"[{', '.join(map(str, value.shape))}]"
            problem = f"input {value.name!r} has the shape {shape}; {target} needs fixed sizes"
            yield error(None, "free-size", problem, "run anybit clean --batch 1")
