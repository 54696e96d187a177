# SPDX-License-Identifier: Apache-2.0
"""Random compiled networks equal their graphs.

A layer that is exact gives what the float graph gives, element for element. Where all are exact or
certified, quantized tensors are equal. Else, and where floats come out, results are compared with
the graph in float64 on the rows on which no rounding can go either way.
"""

import numpy as np
import onnx
import pytest
from double_evaluation import DoubleGraph
from hypothesis import HealthCheck, given, settings
from network_builder import Network
from networks import inputs, networks

import anybit
from anybit.compiler.compiled import CompiledModel, NetworkEngine
from anybit.compiler.program.program import Quantize
from anybit.errors import ModelError

QUICK = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
LONG = settings(max_examples=90, deadline=None, suppress_health_check=[HealthCheck.too_slow])
BATCHES = (1, 7)


def floats(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return anybit.load(proto).run(x)["y"]


def edges(compiled: CompiledModel, shape: tuple[int, ...]) -> np.ndarray:
    """Return the thresholds of the program, and the numbers just below."""
    steps = [
        instruction.thresholds
        for program in compiled.report.programs
        for instruction in program.instructions
        if isinstance(instruction, Quantize)
    ]
    at = np.concatenate([np.float32([0]), *steps])
    at = at[np.isfinite(at)]
    random = np.random.default_rng(len(at))
    return random.choice(np.concatenate([at, np.nextafter(at, np.float32(-np.inf))]), shape)


def check(network: Network, *batches: int) -> None:
    graph, compiled = anybit.load(network.proto), anybit.compile(network.proto)
    promised = {layer.guarantee for layer in compiled.report.layers} - {None}
    comparable = "bounded" not in promised and (network.codes or "certified" not in promised)
    double = None if comparable else DoubleGraph(network.proto)
    actual = [inputs(network, rows) for rows in batches]
    for x in (*actual, edges(compiled, actual[-1].shape)):
        y, expected = compiled.run(x)["y"], graph.run(x)["y"]
        assert y.shape == expected.shape
        assert y.dtype == expected.dtype
        if double is None:
            np.testing.assert_array_equal(y, expected)
            continue
        target = double.evaluated(x)
        size = max(1e-3, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
        clear, atol = target.clear, 1e-4 * size
        np.testing.assert_allclose(y[clear], target.y[clear], rtol=1e-4, atol=atol)


@pytest.mark.parametrize("rows", BATCHES)
@given(network=networks(powers=True, qdq=False))
@QUICK
def test_compile_equals_random_networks_with_power_of_two_scales(network, rows):
    check(network, rows)


@given(network=networks(powers=False, qdq=False))
@QUICK
def test_compile_equals_random_networks_with_any_scales(network):
    check(network, 5)


@given(network=networks(qdq=True))
@QUICK
def test_compile_equals_random_networks_of_quantize_and_dequantize(network):
    check(network, 5)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))  # which workers share
@given(network=networks())
@LONG
def test_compile_equals_many_random_networks(network, part):
    check(network, *BATCHES)


@given(network=networks())
@QUICK
def test_compile_handles_nan_and_infinities_as_graph(network):
    """NaN and infinities do what they do in the float graph, or are refused."""
    compiled = anybit.compile(network.proto)
    x = inputs(network, 6, finite=False)
    y = _run_or_refuse(compiled, x)
    if y is None:
        return
    promised = {layer.guarantee for layer in compiled.report.layers} - {None}
    if promised <= {"exact"}:
        np.testing.assert_array_equal(y, floats(network.proto, x))


@given(network=networks())
@settings(QUICK, max_examples=8)
def test_compile_keeps_rows_independent(network):
    """Give the same bits for one row at a time and all at once."""
    compiled = anybit.compile(network.proto)
    x = inputs(network, 4)
    together = compiled.run(x)["y"]
    apart = np.concatenate([compiled.run(x[row : row + 1])["y"] for row in range(4)])
    if None not in {layer.guarantee for layer in compiled.report.layers}:
        np.testing.assert_array_equal(together, apart)
    if isinstance(compiled.engine, NetworkEngine):  # a session refuses arrays without elements
        assert compiled.run(x[:0])["y"].shape == (0, *together.shape[1:])


@given(network=networks())
@settings(QUICK, max_examples=8)
def test_compile_saved_random_networks_give_same_results(network, tmp_path_factory):
    compiled = anybit.compile(network.proto)
    path = tmp_path_factory.mktemp("saved") / "fast.onnx"
    compiled.save(path)
    x = inputs(network, 3)
    np.testing.assert_array_equal(anybit.load(path).run(x)["y"], compiled.run(x)["y"])


def _run_or_refuse(compiled, x: np.ndarray) -> np.ndarray | None:
    try:
        return compiled.run(x)["y"]
    except ModelError as error:
        if "NaN" in str(error):
            return None
        raise
