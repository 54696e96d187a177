# SPDX-License-Identifier: Apache-2.0
"""Only QuantizeLinear and DequantizeLinear: `anybit convert --to qdq`, planned for every node."""

from collections.abc import Iterator

from anybit.errors import ModelError
from anybit.onnx.checks.finding import Finding, make_error
from anybit.onnx.checks.subject import Subject
from anybit.onnx.checks.targets import foreign
from anybit.onnx.forms import NEWEST_OPSET, Form
from anybit.onnx.qdq.dequantizers import plan_dequantizer
from anybit.onnx.qdq.plan import Options, plan_quantizer
from anybit.onnx.quantizers.grids import Inexpressible


def check(subject: Subject) -> Iterator[Finding]:
    yield from foreign.check(subject, Form.QDQ)
    options = Options(Form.QDQ, NEWEST_OPSET)
    for quantizer in subject.quantizers:
        try:
            if quantizer.operator.is_dequantizer:
                plan_dequantizer(quantizer.node, options.opset)
            else:
                plan_quantizer(quantizer.node, quantizer.operator, options)
        except Inexpressible as reason:
            yield make_error(
                quantizer.node,
                "not-expressible",
                f"QuantizeLinear and DequantizeLinear cannot express it exactly: {reason}",
                "convert it anyway: this node becomes standard operators, the others do not",
            )
        except ModelError:  # reported with its parameters
            continue
