# SPDX-License-Identifier: Apache-2.0
"""Replays of float nodes equal the evaluated nodes, or are not used."""

from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import pytest

from anybit.compiler.partition.element_functions import (
    AddConstant,
    ElementFunction,
    Mean,
    NodeChain,
)
from anybit.compiler.partition.expressions import Accumulators, IntegerRange
from anybit.compiler.program.reference import compute_result
from anybit.compiler.requantize import float_replay
from anybit.compiler.requantize.float_replay import replay_floats
from anybit.compiler.requantize.replay_steps import is_defined_by_ieee


class Off(Mean):
    """A mean of two that is off by a rounding at one number."""

    at = np.float32(0)

    def __call__(self, elements):
        halves = elements / np.float32(2)
        return np.where(elements == self.at, np.nextafter(halves, np.float32(9)), halves)


def root(low, high, channels=1, scale=1.0):
    reach = IntegerRange(np.full(channels, low), np.full(channels, high))
    of = Accumulators(np.full(channels, scale, np.float32), reach, np.zeros(channels))
    return SimpleNamespace(channels=channels, weights=np.zeros((channels, 1)), accumulators=of)


def mean(at):
    nodes = SimpleNamespace(window=(2,), nodes=(SimpleNamespace(op_type="ReduceMean"),))
    part = type("OffThere", (Off,), {"at": np.float32(at)})(nodes)
    return ElementFunction().then(part, monotone=True, uniform=True)


def chain(*lines, channels=1):
    """Return the nodes of a graph from x to y as a function."""
    body = "\n".join(lines)
    model = ir.from_onnx_text(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[n, {channels}] x) => '
        f"(float[n, {channels}] y) <float c = {{0.1}}, float big = {{3e38}}, float none = {{0.0}}>"
        f"{{ {body} }}"
    )
    x, y = model.graph.inputs[0], model.graph.outputs[0]
    part = NodeChain(model, tuple(model.graph), (x,), y, 2, 1)
    return ElementFunction().then(part, monotone=True, uniform=True)


@pytest.mark.parametrize("at", [-30_000, 1235, 49_998])
def test_replay_detects_one_wrong_accumulator(at):
    """Evaluate functions that are not single IEEE 754 operations on all accumulators."""
    of = root(-50_000, 50_000, channels=64)
    assert replay_floats(mean(2_000_000), of) is not None
    assert replay_floats(mean(at), of) is None


def test_replay_refuses_unproven_functions_of_too_many_accumulators(monkeypatch):
    monkeypatch.setattr(float_replay, "_MOST_EVALUATIONS", 1000)
    assert replay_floats(mean(2_000_000), root(-400, 400)) is not None
    assert replay_floats(mean(2_000_000), root(-600, 600)) is None


def test_replay_proves_single_operations_without_enumeration(monkeypatch):
    monkeypatch.setattr(float_replay, "_MOST_EVALUATIONS", 1000)
    function = chain("a = Mul(x, c)", "b = Sub(c, a)", "y = Clip(b, none, big)")
    assert len(replay_floats(function, root(-(2**28), 2**28)).steps) == 4
    biased = ElementFunction().then(AddConstant(np.float32([0.25])), monotone=True, uniform=False)
    assert len(replay_floats(biased, root(-(2**28), 2**28)).steps) == 1


FUNCTIONS = ["HardSwish(x)", "HardSigmoid(x)", "HardSigmoid<alpha: float = -0.3>(x)"]


@pytest.mark.parametrize("line", FUNCTIONS)
def test_replay_supports_functions_defined_by_operations(line):
    function, of = chain(f"y = {line}"), root(-(2**28), 2**28, scale=2.0**-26)
    epilogue = replay_floats(function, of)
    points = np.random.default_rng(0).integers(-(2**28), 2**28, (10_000, 1))
    np.testing.assert_array_equal(
        compute_result(epilogue, points), function(of.accumulators.values(points))
    )


@pytest.mark.parametrize("line", FUNCTIONS)
def test_replay_refuses_fused_multiply_add(line, monkeypatch):
    function = chain(f"y = {line}")
    (part,) = function.parts
    assert is_defined_by_ieee(part)
    alpha = dict(zip(FUNCTIONS, (1 / 6, 0.2, -0.3), strict=True))[line]

    def fused(self, x):
        sigmoid = np.clip(x.astype(np.float64) * np.float32(alpha) + 0.5, 0, 1).astype(np.float32)
        return sigmoid * x if "Swish" in line else sigmoid

    monkeypatch.setattr(NodeChain, "__call__", fused)
    assert not is_defined_by_ieee(part)


def test_replay_keeps_value_read_twice():
    function = chain("r = Relu(x)", "y = Mul(x, r)")
    assert replay_floats(function, root(-(2**12), 2**12)) is not None


def test_replay_does_not_prove_infinite_intermediates(monkeypatch):
    """Leave NaN open: Relu of NaN differs between runtimes."""
    monkeypatch.setattr(float_replay, "_MOST_EVALUATIONS", 1000)
    function = chain("a = Mul(x, big)", "b = Mul(a, none)", "y = Relu(b)")
    assert replay_floats(function, root(-(2**28), 2**28)) is None
    assert replay_floats(function, root(0, 0)) is not None


def test_replay_refuses_computed_bounds():
    function = chain("a = Neg(x)", "y = Clip(x, a)")
    assert replay_floats(function, root(0, 100)) is None
