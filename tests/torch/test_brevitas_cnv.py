# SPDX-License-Identifier: Apache-2.0
"""The CNV of FINN's examples with two bits, as Brevitas exports it: exact, and ternary."""

import warnings
from pathlib import Path

import numpy as np
import pytest

import anybit

torch = pytest.importorskip("torch", reason="Brevitas and PyTorch make this model")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("brevitas", reason="Brevitas makes this model")
    from brevitas import nn as qnn
    from brevitas.core.zero_point import ZeroZeroPoint
    from brevitas.export import export_qonnx
    from brevitas.inject import ExtendedInjector
    from brevitas.inject.enum import (
        BitWidthImplType,
        FloatToIntImplType,
        QuantType,
        RestrictValueType,
        ScalingImplType,
    )
    from brevitas.quant.solver import ActQuantSolver, WeightQuantSolver

pytestmark = pytest.mark.filterwarnings("ignore")

# Channels of the convolutions, and whether a pooling follows; then of the dense layers.
CONVOLUTIONS = ((64, False), (64, True), (128, False), (128, True), (256, False), (256, False))
DENSE = (512, 512)


class Unit(ExtendedInjector):
    """Two bits from -1 to 1 with a step of 1."""

    quant_type, bit_width, bit_width_impl_type = QuantType.INT, 2, BitWidthImplType.CONST
    signed, narrow_range, zero_point_impl = True, True, ZeroZeroPoint
    float_to_int_impl_type = FloatToIntImplType.ROUND
    scaling_impl_type, restrict_scaling_type = ScalingImplType.CONST, RestrictValueType.FP
    scaling_per_output_channel = False


class Weight(Unit, WeightQuantSolver):
    scaling_const = 1.0


class Activation(Unit, ActQuantSolver):
    min_val, max_val = -1.0, 1.0


def cnv() -> torch.nn.Module:
    layers, channels = [qnn.QuantIdentity(bit_width=8)], 3
    for count, pooled in CONVOLUTIONS:
        layers += [
            qnn.QuantConv2d(channels, count, 3, bias=False, weight_quant=Weight),
            torch.nn.BatchNorm2d(count),
            qnn.QuantIdentity(act_quant=Activation),
            *[torch.nn.MaxPool2d(2)] * pooled,
        ]
        channels = count
    layers.append(torch.nn.Flatten())
    for count in DENSE:
        layers += [
            qnn.QuantLinear(channels, count, bias=False, weight_quant=Weight),
            torch.nn.BatchNorm1d(count),
            qnn.QuantIdentity(act_quant=Activation),
        ]
        channels = count
    layers.append(qnn.QuantLinear(channels, 10, bias=False, weight_quant=Weight))
    return torch.nn.Sequential(*layers)


def test_cnv_export_compiles_exactly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = cnv()
    for layer in network:
        if isinstance(layer, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            torch.nn.init.normal_(layer.running_mean, 0, 2)
            torch.nn.init.uniform_(layer.running_var, 5, 60)
        elif hasattr(layer, "weight_quant") and layer.weight is not None:
            torch.nn.init.uniform_(layer.weight, -1, 1)
    path = tmp_path / "cnv.onnx"
    export_qonnx(network.eval(), torch.randn(1, 3, 32, 32), export_path=str(path), dynamo=False)
    compiled = anybit.compile(path)
    layers = compiled.report.layers
    assert compiled.report.coverage == "9 of 9 layers, 100 % of MACs"
    assert {layer.guarantee for layer in layers} == {"exact"}
    assert {layer.layer.weight_codes for layer in layers} == {(-1, 1)}
    assert {layer.layer.input_codes for layer in layers[1:]} == {(-1, 1)}
    x = torch.rand(3, 3, 32, 32).numpy() * 2 - 1
    (expected,), (inputs,) = (model.run(x).values() for model in (anybit.load(path), compiled))
    assert len(np.unique(expected)) > 5
    np.testing.assert_array_equal(inputs, expected)
