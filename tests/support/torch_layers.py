# SPDX-License-Identifier: Apache-2.0
"""Quantizers for the layers that the tests of layers share."""

from typing import Any

from anybit.torch import nn

INT4 = {"bits": 4, "narrow": True}


def weights() -> Any:
    return nn.IntQuantizer(**INT4, granularity="per-channel")


def activations(**options: Any) -> Any:
    return nn.IntQuantizer(4, signed=False, **options)


def all_quantizers(**options: Any) -> dict[str, Any]:
    return {
        "weight_quantizer": weights(),
        "bias_quantizer": nn.IntQuantizer(16, scale="accumulator"),
        "input_quantizer": activations(**options),
        "output_quantizer": nn.IntQuantizer(8, scale="ema"),
    }
