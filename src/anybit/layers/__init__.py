# SPDX-License-Identifier: Apache-2.0
"""What each layer of a model costs, what it can hold, and whether float32 computes it exactly.

analyze    all of it, from a model
Analyzed   what was found; `to_json` writes it down
Layer      one Conv, ConvTranspose, Gemm or MatMul
Seen       what data show of a layer
page       the same as a page
"""

from anybit.layers.analyzed import Analyzed, Layer, Seen
from anybit.layers.driver import analyze
from anybit.layers.html import page

__all__ = ["Analyzed", "Layer", "Seen", "analyze", "page"]
