# SPDX-License-Identifier: Apache-2.0
"""`evaluate`: the quality of models on data, their similarity to a reference, time and size.

Data are read as `quantize` reads them, sample by sample: `driver` reads samples and labels,
`scoring` runs every model on a sample, `metrics` scores outputs, `timing` measures latency.
"""

from anybit.evaluation.driver import Evaluation, EvaluationRow, evaluate

__all__ = ["Evaluation", "EvaluationRow", "evaluate"]
