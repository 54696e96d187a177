# SPDX-License-Identifier: Apache-2.0
"""Where two models, two runtimes, or a model and recorded tensors disagree.

diff              compare every tensor, not only the outputs
Difference        what was found; `to_json` writes it down
page              the same as a page with pictures
TensorDifference  one pair of tensors
RUNNERS           what can run a model, by name
"""

from anybit.comparison.compare import diff
from anybit.comparison.measure import Sample
from anybit.comparison.report.html import page
from anybit.comparison.results import (
    Difference,
    Match,
    NodeInput,
    TensorDifference,
    Verdict,
)
from anybit.comparison.sides.runners import RUNNERS

__all__ = [
    "RUNNERS",
    "Difference",
    "Match",
    "NodeInput",
    "Sample",
    "TensorDifference",
    "Verdict",
    "diff",
    "page",
]
