# SPDX-License-Identifier: Apache-2.0
"""All remarks on a quantized model, in the order in which they are reported."""

import onnx_ir as ir

from anybit.data.dataset import Dataset
from anybit.ptq.remarks.constant_inputs import remark_on_constant_inputs
from anybit.ptq.remarks.idle_branches import remark_on_idle_branches
from anybit.ptq.remarks.logarithms import remark_on_logarithms
from anybit.ptq.remarks.non_finite import remark_on_non_finite
from anybit.ptq.search.candidates import MeasuredCandidate


def remark_on_data(dataset: Dataset) -> tuple[str, ...]:
    """Return the remarks on the samples."""
    return *dataset.remarks, *remark_on_constant_inputs(dataset)


def remark_on_candidate(candidate: MeasuredCandidate, model: ir.Model) -> tuple[str, ...]:
    """Return the remarks on dropped choices, skipped branches and bad outputs.

    Args:
        candidate: The quantized model.
        model: The float model.
    """
    return (
        *candidate.remarks,
        *remark_on_idle_branches(candidate),
        *remark_on_logarithms(candidate, model),
        *remark_on_non_finite(candidate, model),
    )
