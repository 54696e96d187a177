# SPDX-License-Identifier: Apache-2.0
"""All remarks on a quantized model, in the order in which they are reported."""

import onnx_ir as ir

from anybit.data.dataset import Dataset
from anybit.ptq.remarks.constant_inputs import describe_constant_inputs
from anybit.ptq.remarks.idle_branches import describe_idle_branches
from anybit.ptq.remarks.logarithms import describe_logarithms
from anybit.ptq.remarks.non_finite import describe_non_finite
from anybit.ptq.search.candidates import MeasuredCandidate


def list_data_remarks(dataset: Dataset) -> tuple[str, ...]:
    """Return the remarks on the samples."""
    return *dataset.remarks, *describe_constant_inputs(dataset)


def list_candidate_remarks(candidate: MeasuredCandidate, model: ir.Model) -> tuple[str, ...]:
    """Return the remarks on dropped choices, skipped branches and bad outputs.

    Args:
        candidate: The quantized model.
        model: The float model.
    """
    return (
        *candidate.remarks,
        *describe_idle_branches(candidate),
        *describe_logarithms(candidate, model),
        *describe_non_finite(candidate, model),
    )
