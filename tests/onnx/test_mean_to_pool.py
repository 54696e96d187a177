# SPDX-License-Identifier: Apache-2.0
"""Means over whole images become GlobalAveragePool: the same bits where sums do not round."""

from typing import Any

import numpy as np
import onnx
import pytest
from clean_checks import clean
from pass_checks import apply_passes, assert_same_outputs, random
from small_models import kinds, model, node

from anybit.onnx.checks.checking import check
from anybit.onnx.passes import MeanToPool


def mean(axes: list[int] | None, rank: int = 4, opset: int = 18, **options: Any) -> onnx.ModelProto:
    """Average quarters of integers."""
    constants: dict[str, Any] = {"quarter": 0.25, "zero": 0, "eight": 8}
    inputs = "q"
    if axes is not None and opset >= 18:
        constants["axes"] = np.array(axes, np.int64)
        inputs = "q axes"
    elif axes is not None:
        options["axes"] = axes
    nodes = [
        node("IntQuant", "x quarter zero eight", "q", name="quantizer"),
        node("ReduceMean", inputs, domain="", name="mean", **options),
    ]
    shape = [1, 3, 5, 7][:rank]
    opsets = {"": opset, "qonnx.custom_op.general": 1}
    return model(nodes, constants, inputs={"x": shape}, opsets=opsets)


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (mean([2, 3]), ["GlobalAveragePool"]),
        (mean([-1, -2]), ["GlobalAveragePool"]),
        (mean([2, 3], opset=13), ["GlobalAveragePool"]),
        (mean([2], rank=3), ["GlobalAveragePool"]),
        (mean([2, 3], keepdims=0), ["GlobalAveragePool", "Flatten"]),
        (mean([2, 3], opset=13, keepdims=0), ["GlobalAveragePool", "Flatten"]),
        (mean([1, 2, 3]), ["ReduceMean"]),
        (mean([2]), ["ReduceMean"]),
        (mean([3]), ["ReduceMean"]),
        (mean([1], rank=2), ["ReduceMean"]),
        (mean(None), ["ReduceMean"]),
        (mean([], noop_with_empty_axes=1), ["ReduceMean"]),
    ],
)
def test_mean_to_pool_means_of_images(proto: onnx.ModelProto, expected: list[str]) -> None:
    changed = apply_passes(proto, MeanToPool())
    assert kinds(changed) == ["IntQuant", *expected]
    assert changed.graph[1].name == "mean"
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    assert_same_outputs(proto, changed, 8 * random(*shape))


def test_mean_to_pool_axes_that_are_computed_stay() -> None:
    proto = mean([2, 3])
    proto.graph.input.append(
        onnx.helper.make_tensor_value_info("axes", onnx.TensorProto.INT64, [2])
    )
    del proto.graph.initializer[-1]
    assert kinds(apply_passes(proto, MeanToPool())) == ["IntQuant", "ReduceMean"]


@pytest.mark.parametrize(("sizes", "codes"), [((4, 8), set()), ((5, 7), {"layout"})])
def test_mean_to_pool_hls4ml_computes_means_of_powers_of_two(
    sizes: tuple[int, int], codes: set[str]
) -> None:
    proto = mean([2, 3])
    assert "layer" in {finding.code for finding in check(proto, "hls4ml")}
    for axis, size in zip((2, 3), sizes, strict=True):
        proto.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
    findings = check(clean(proto, target="hls4ml"), "hls4ml")
    assert {finding.code for finding in findings if finding.severity == "error"} == codes
