# SPDX-License-Identifier: Apache-2.0
"""From float models to few bits: `quantize`.

Models in float16 and float64 are computed in float32 first (`precision`). Quantizers go before
what multiplies and adds up (`placement`). The data (`items`, `samples`) are read in two passes,
shard by shard, in parallel (`calibration`, `survey`, `recording`); what is kept of them is counts
and extremes (`statistics`, `findings`), and a few samples, on which ranges and smoothing are
chosen by the error of layers (`search`, `weights`). What was chosen is written into the model
(`insertion`) and judged on other data (`verdict`, `certainty`). How much of it is done is one word
(`effort`); with the most, weights are learned in PyTorch (`learned`).

Words say what each layer gets (`plan`). A budget (`budget`) finds widths for them instead: by what
rounding a layer does to the outputs (`sensitivity`, `mixing`) and what it costs (`knapsack`,
`macs`), with a few `attempts`.
"""

from anybit.quantization.driver import quantize
from anybit.quantization.result import Mix, Quantized, QuantizedLayer
from anybit.quantization.verdict import Verdict

__all__ = ["Mix", "Quantized", "QuantizedLayer", "Verdict", "quantize"]
