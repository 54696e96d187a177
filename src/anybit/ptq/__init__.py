# SPDX-License-Identifier: Apache-2.0
"""Post-training quantization: `quantize`.

Layers are placed in float32 (`precision`, `placement`), and specs assigned to them (`plan`). Two
passes over the data, shard by shard, give statistics and a few samples of each activation
(`calibration`, `survey`, `statistics`). On these the parameters of each layer are searched
(`search`, `weights`, `gptq`). Quantizers are inserted (`insertion`), choices that harm the whole
network dropped (`ablation`), and the result evaluated on held-out samples.
All thresholds are in `config`.

A budget searches mixed precision (`mixed_precision`): by the sensitivity of the outputs to each
layer, and by its cost.
"""

from anybit.metrics.quality import QualityMetrics
from anybit.ptq.pipeline import quantize
from anybit.ptq.result import ParetoPoint, QuantizationResult, QuantizedLayer

__all__ = ["ParetoPoint", "QualityMetrics", "QuantizationResult", "QuantizedLayer", "quantize"]
