# SPDX-License-Identifier: Apache-2.0
"""Sums that float32 holds, and those that it does not."""

import numpy as np
import onnx
import pytest
from faulty_models import codes, convolution, product
from small_models import model, node

from anybit.onnx.checks.checking import check


def test_check_sums_that_float32_holds() -> None:
    assert check(product()) == ()
    assert check(product(bias=-1.5)) == ()
    # 127 * 128 * 1032 is the last multiple that stays below 2^24.
    assert check(product(count=1032)) == ()


@pytest.mark.parametrize(
    ("proto", "code", "words"),
    [
        (product(count=1033), "accumulator-width", "sums reach 1.679e+07 steps"),
        (product(count=1032, bias=3000.0), "accumulator-width", "26 bits"),
        (product(scale=0.3), "products-round", "a step of 0.3 is not a power of two"),
        (product(bias=0.3), "bias-off-grid", "the bias 0.3 is not a multiple"),
    ],
)
def test_check_sums_that_float32_does_not_hold(
    proto: onnx.ModelProto, code: str, words: str
) -> None:
    (finding,) = check(proto)
    assert (finding.severity, finding.code, finding.node) == ("warning", code, "sum")
    assert words in finding.problem


@pytest.mark.parametrize(
    ("proto", "reach"),
    [
        (convolution("Conv", [6, 4, 3, 3]), 2047 * 2047 * 36),
        (convolution("Conv", [4, 1, 3, 3], group=4), 2047 * 2047 * 9),
        (convolution("ConvTranspose", [4, 6, 3, 3]), 2047 * 2047 * 36),
        (convolution("ConvTranspose", [4, 6, 3, 3], group=2), 2047 * 2047 * 18),
        (convolution("MatMul", [5, 7]), 2047 * 2047 * 5),
    ],
)
def test_check_length_of_sums(proto: onnx.ModelProto, reach: int) -> None:
    """12 bits after a Relu are 0 .. 2047."""
    (finding,) = check(proto)
    assert f"sums reach {reach:.4g} steps" in finding.problem


def test_check_means_that_round() -> None:
    def mean(size: int) -> onnx.ModelProto:
        nodes = [
            node("IntQuant", "x one zero four", "a"),
            node("AveragePool", "a", domain="", kernel_shape=[size, size], name="mean"),
        ]
        return model(nodes, {"one": 1, "zero": 0, "four": 4}, inputs={"x": [1, 2, 8, 8]})

    assert check(mean(4)) == ()
    assert codes(check(mean(3))) == {"mean-rounds"}


def invalid() -> dict[str, onnx.ModelProto]:
    """Nodes that make no sense, each in its own way, behind quantizers that do."""
    made = {
        "rank of Conv": convolution("Conv", [6]),
        "group": convolution("ConvTranspose", [4, 6, 3, 3], group=3),
        "no group": convolution("ConvTranspose", [4, 6, 3, 3], group=0),
        "rank of Gemm": convolution("Gemm", [3, 4, 5]),
        "scalar": convolution("MatMul", []),
        "empty": convolution("MatMul", [0, 3]),
        "type of transB": convolution("Gemm", [3, 4], transB=0.5),
        "type of alpha": convolution("Gemm", [3, 4], alpha=2),
        "kernel": convolution("AveragePool", [3, 4], kernel_shape=0.5),
        "a mean of nothing": convolution("AveragePool", [3, 4], kernel_shape=[0, 0]),
    }
    strange = {
        "bias of text": np.array(["a", "b"], object),
        "bias that is infinite": np.array([np.inf, 0], np.float32),
        "bias that is none": np.array([np.nan, 0], np.float32),
        "bias without elements": np.zeros(0, np.float32),
    }
    for name, bias in strange.items():
        proto = product(bias=1.5)
        proto.graph.initializer.remove(next(t for t in proto.graph.initializer if t.name == "bias"))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
        made[name] = proto
    turned = product()
    turned.graph.node.insert(2, node("Transpose", "w", "t", domain="", name="t", perm=[1, 1]))
    turned.graph.node[3].input[1] = "t"
    return made | {"order": turned, "scale": product(scale=1e-38), "large": product(scale=1e36)}


@pytest.mark.parametrize("name", invalid())
def test_check_invalid_nodes_are_not_counted(name: str) -> None:
    """Nothing is caught around the analysis: whatever it does not expect would end the test."""
    findings = check(invalid()[name])
    assert "unusable" not in codes(findings)
