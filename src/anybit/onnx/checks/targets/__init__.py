# SPDX-License-Identifier: Apache-2.0
"""Table of the targets; one file per target."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from anybit.onnx.checks.finding import Finding
from anybit.onnx.checks.subject import Subject
from anybit.onnx.checks.targets import finn, hls4ml, onnxruntime, qdq, standard

Rules = Callable[[Subject], Iterator[Finding]]


@dataclass(frozen=True)
class CheckTarget:
    """The rules of a target, and its names of this package's operators, if it requires any."""

    rules: Rules
    names: frozenset[str] = frozenset()


TARGETS: Mapping[str, CheckTarget] = {
    "onnxruntime": CheckTarget(onnxruntime.check),
    "standard": CheckTarget(standard.check),
    "qdq": CheckTarget(qdq.check),
    "finn": CheckTarget(finn.check, finn.NAMES),
    "hls4ml": CheckTarget(hls4ml.check, hls4ml.NAMES),
}
