# SPDX-License-Identifier: Apache-2.0
"""Only standard ONNX operators: `anybit convert --to standard`, tried on every node."""

from collections.abc import Iterator

from anybit.errors import ModelError
from anybit.onnx.checks.finding import Finding, make_error
from anybit.onnx.checks.subject import Subject
from anybit.onnx.checks.targets import foreign
from anybit.onnx.expansion.calls import Expansions
from anybit.onnx.forms import Form
from anybit.onnx.graph.names import describe


def check(subject: Subject) -> Iterator[Finding]:
    yield from foreign.check(subject, Form.STANDARD)
    expansions = Expansions()
    for quantizer in subject.quantizers:
        try:
            expansions.expand(quantizer.node, quantizer.operator)
        except ModelError as refusal:
            problem = str(refusal).removeprefix(describe(quantizer.node)).lstrip(": ")
            yield make_error(
                quantizer.node,
                "not-expressible",
                f"standard operators cannot express it: {problem}",
                "declare types and shapes of the model, and constant parameters",
            )
