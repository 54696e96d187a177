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
summary          the result: layers, remarks, sizes
"""

from anybit.metrics.quality import QualityMetrics
from anybit.ptq.pipeline import quantize
from anybit.ptq.result import ParetoPoint, QuantizationResult, QuantizedLayer

__all__ = ["ParetoPoint", "QualityMetrics", "QuantizationResult", "QuantizedLayer", "quantize"]
