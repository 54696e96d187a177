# SPDX-License-Identifier: Apache-2.0
"""Post-training quantization: `quantize`.

pipeline         the stages of `quantize`, in order
options, config  checked options; thresholds of the search
graph            preparation, layers to quantize, integer-only operators
plan             specs of layers and activations
calibration      statistics and samples of activations, in two passes over the data
algorithms       ranges, SmoothQuant, AWQ, GPTQ, bias correction
search           choice of parameters, ablation, quality on held-out samples
mixed_precision  sensitivity, noise model and cost, for a budget
insertion        nodes of quantizers
result_builder   the result: layers, remarks, sizes
"""

from anybit.metrics.quality import QualityMetrics
from anybit.ptq.pipeline import quantize
from anybit.ptq.result import LayerResult, ParetoPoint, QuantizationResult

__all__ = ["LayerResult", "ParetoPoint", "QualityMetrics", "QuantizationResult", "quantize"]
