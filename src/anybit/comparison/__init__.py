# SPDX-License-Identifier: Apache-2.0
"""Tensor-by-tensor comparison of two models, two runtimes, or a model and recorded tensors.

diff              compare all tensors, not only the outputs
Difference        the result; `to_json` gives its figures
page              the result as an HTML report
TensorDifference  one pair of tensors
RUNNERS           runtimes that run a model, by name
"""

from anybit.comparison.compare import diff
from anybit.comparison.measure import ElementDifference
from anybit.comparison.report.html import render_page
from anybit.comparison.results import (
    Difference,
    Match,
    NodeInput,
    Outcome,
    TensorDifference,
)
from anybit.comparison.sides.runners import RUNNERS

__all__ = [
    "RUNNERS",
    "Difference",
    "ElementDifference",
    "Match",
    "NodeInput",
    "Outcome",
    "TensorDifference",
    "diff",
    "render_page",
]
