# SPDX-License-Identifier: Apache-2.0
"""What each target cannot take. One file per target; this is the table of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from anybit.onnx.checks.finding import Finding
from anybit.onnx.checks.subject import Subject
from anybit.onnx.checks.targets import finn, hls4ml, onnxruntime, qdq, standard

Rules = Callable[[Subject], Iterator[Finding]]


@dataclass(frozen=True)
class Target:
    """Rules, and the names that the target wants our operators by, if it wants any."""

    rules: Rules
    names: frozenset[str] = frozenset()


TARGETS: Mapping[str, Target] = {
    "onnxruntime": Target(onnxruntime.findings),
    "standard": Target(standard.findings),
    "qdq": Target(qdq.findings),
    "finn": Target(finn.findings, finn.NAMES),
    "hls4ml": Target(hls4ml.findings, hls4ml.NAMES),
}
