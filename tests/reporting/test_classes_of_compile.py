# SPDX-License-Identifier: Apache-2.0
"""The classes of a report are those that `compile` gives: none for layers that stay float."""

import onnx_ir as ir
import pytest
from float_models import NETWORKS, data_for

import anybit
from anybit.onnx.preparation import followable
from anybit.reporting.quantized_layers import quantized_layers

_SIZES = {"attention": [1, 7, 16], "convolutions": [1, 3, 8, 8]}


@pytest.mark.parametrize("name", _SIZES)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(
    ("weights", "activations"),
    [("int8", "uint8"), ("int16", "uint8"), ("int8", "uint16"), ("fp8_e4m3", "uint8")],
)
def test_classes(name: str, fixed: bool, weights: str, activations: str) -> None:
    found = anybit.quantize(
        NETWORKS[name](), data_for(name, 4), weights=weights, activations=activations
    )
    if fixed:
        found.model.graph.inputs[0].shape = ir.Shape(_SIZES[name])
    compiled = {
        each.name: each.guarantee is not None
        for each in anybit.compile(found.model).report.products
    }
    layers = [each.layer for each in quantized_layers(followable(found.model))]
    assert {each.name: each.guarantee is not None for each in layers} == compiled
    assert all(each.reason for each in layers if each.guarantee is None)
