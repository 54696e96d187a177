# SPDX-License-Identifier: Apache-2.0
"""Table of the targets; one file per target."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from anybit.onnx.checks.finding import Finding
from anybit.onnx.checks.subject import Subject
from anybit.onnx.checks.targets import finn, hls4ml, onnxruntime, qdq, standard

Rules = Callable[[Subject], Iterator[Finding]]


@dataclass(frozen=True)
class Target:
    """The rules of a target, and its names of this package's operators, if it requires any."""

    rules: Rules
    names: frozenset[str] = frozenset()


TARGETS: Mapping[str, Target] = {
    "onnxruntime": Target(onnxruntime.check),
    "standard": Target(standard.check),
    "qdq": Target(qdq.check),
    "finn": Target(finn.check, finn.NAMES),
    "hls4ml": Target(hls4ml.check, hls4ml.NAMES),
}
