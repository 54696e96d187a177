# SPDX-License-Identifier: Apache-2.0
"""Whatever a run gives is what the analysis allowed."""

import numpy as np
import pytest
from analysis_checks import analyze_and_compare
from hypothesis import given, settings
from network_builder import Network
from networks import inputs, networks
from random_graphs import RandomGraph, graphs
from small_models import model, node

from anybit.onnx.analysis.abstract_values import CodeRanges, from_codes

STEPS = CodeRanges(
    np.float32(1 / 16).reshape(()),
    np.zeros((), np.float32),
    np.asarray(-128, np.int64),
    np.asarray(128, np.int64),
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("fold", [False, True], ids=["quantized weights", "folded weights"])
@pytest.mark.parametrize("exact", [True, False], ids=["powers of two", "any scales"])
def test_analysis_random_graphs(exact: bool, fold: bool) -> None:
    @settings(max_examples=40, deadline=None)
    @given(graphs(exact=exact))
    def check(graph: RandomGraph) -> None:
        analyze_and_compare(graph.proto, {"x": graph.x}, fold=fold)
        analyze_and_compare(graph.proto, {"x": graph.x}, {"x": from_codes(STEPS)}, fold=fold)

    check()


@pytest.mark.sample(2)
@pytest.mark.parametrize("fold", [False, True], ids=["quantized weights", "folded weights"])
@pytest.mark.parametrize("qdq", [False, True], ids=["ours", "QDQ"])
def test_analysis_networks(qdq: bool, fold: bool) -> None:
    @settings(max_examples=40, deadline=None)
    @given(networks(qdq=qdq))
    def check(network: Network) -> None:
        analyze_and_compare(network.proto, {"x": inputs(network, 3)}, fold=fold)

    check()


def test_analysis_border_zeros_may_lie_outside_the_type() -> None:
    """Use one bit with zero-point 3: the codes are 0 and 1, and 3 for padding."""
    constants = {
        "s": np.float32(0.75),
        "z": np.float32(3),
        "b": np.float32(1),
        "p": np.array([0, 1, 0, 0]),
    }
    nodes = [
        node("IntQuant", "x s z b", "q", signed=0),
        node("Pad", "q p", domain=""),
    ]
    x = np.linspace(-4, 4, 12, dtype=np.float32).reshape(3, 4)
    analyze_and_compare(model(nodes, constants, inputs={"x": x.shape}), {"x": x})


@pytest.mark.parametrize("fold", [False, True], ids=["quantized weights", "folded weights"])
def test_analysis_exact_sums_may_not_be_multiples(fold: bool) -> None:
    """3 * 0.22290476 is rounded in float32: a sum of it alone is exact, and above 3 steps."""
    scale = np.float32(0.22290476)
    assert float(np.float32(3) * scale) > 3 * float(scale)
    constants = {
        "s": np.float32(1),
        "z": np.float32(0),
        "one": np.float32(1),
        "b": np.float32(4),
        "ws": scale,
        "w": np.diag([3, 3, 2]).astype(np.float32) * scale,
    }
    nodes = [
        node("IntQuant", "x s z one", "q", signed=0),
        node("IntQuant", "w ws z b", "wq"),
        node("MatMul", "q wq", domain=""),
    ]
    x = np.ones((2, 3), np.float32)
    analyze_and_compare(model(nodes, constants, inputs={"x": x.shape}), {"x": x}, fold=fold)
