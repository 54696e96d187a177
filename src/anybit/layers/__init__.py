# SPDX-License-Identifier: Apache-2.0
"""What each layer of a model costs, what it can hold, and whether float32 computes it exactly.

analyze    all of it, from a model
Analyzed   what was found; `to_json` writes it down
Guarantee  what can be promised of a layer
Layer      one Conv, ConvTranspose, Gemm or MatMul
Seen       what data show of a layer
page       the same as a page
"""

from anybit.layers.driver import analyze
from anybit.layers.html import page
from anybit.layers.layer import Analyzed, Guarantee, Layer, Seen

__all__ = ["Analyzed", "Guarantee", "Layer", "Seen", "analyze", "page"]
