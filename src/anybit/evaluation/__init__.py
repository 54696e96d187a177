# SPDX-License-Identifier: Apache-2.0
"""How good models are, and how near to one another: `evaluate`.

The data are read as `quantize` reads them, sample by sample; each goes through all models
(`driver`), with its labels if there are any (`labels`). What outputs are worth is added up in
`metrics`; how near two models are, by the `Judge` of `quantize`.
"""

from anybit.evaluation.driver import evaluate
from anybit.evaluation.result import Evaluated, Evaluation

__all__ = ["Evaluated", "Evaluation", "evaluate"]
