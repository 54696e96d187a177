# SPDX-License-Identifier: Apache-2.0
"""Float results of a sum are replayed only where every accumulator has been settled."""

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
from anybit.compiler.program.reference import result_of
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
    return SimpleNamespace(weights=np.zeros((channels, 1)), accumulators=of)


def mean(at):
    nodes = SimpleNamespace(window=(2,), nodes=(SimpleNamespace(op_type="ReduceMean"),))
    part = type("OffThere", (Off,), {"at": np.float32(at)})(nodes)
    return ElementFunction().then(part, monotone=True, uniform=True)


def chain(*lines, channels=1):
    """The nodes of a graph from x to y as a function."""
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
def test_one_accumulator_that_differs_is_found(at):
    """Wherever it lies: what is no single operation of IEEE 754 is evaluated on all of them."""
    of = root(-50_000, 50_000, channels=64)
    assert replay_floats(mean(2_000_000), of) is not None
    assert replay_floats(mean(at), of) is None


def test_too_many_accumulators_are_not_believed(monkeypatch):
    monkeypatch.setattr(float_replay, "_MOST_EVALUATIONS", 1000)
    assert replay_floats(mean(2_000_000), root(-400, 400)) is not None
    assert replay_floats(mean(2_000_000), root(-600, 600)) is None


def test_single_operations_need_no_look_at_every_accumulator(monkeypatch):
    monkeypatch.setattr(float_replay, "_MOST_EVALUATIONS", 1000)
    function = chain("a = Mul(x, c)", "b = Sub(c, a)", "y = Clip(b, none, big)")
    assert len(replay_floats(function, root(-(2**28), 2**28)).steps) == 4
    biased = ElementFunction().then(AddConstant(np.float32([0.25])), monotone=True, uniform=False)
    assert len(replay_floats(biased, root(-(2**28), 2**28)).steps) == 1


FUNCTIONS = ["HardSwish(x)", "HardSigmoid(x)", "HardSigmoid<alpha: float = -0.3>(x)"]


@pytest.mark.parametrize("line", FUNCTIONS)
def test_functions_that_are_defined_by_operations_are_replayed(line):
    function, of = chain(f"y = {line}"), root(-(2**28), 2**28, scale=2.0**-26)
    tail = replay_floats(function, of)
    points = np.random.default_rng(0).integers(-(2**28), 2**28, (10_000, 1))
    np.testing.assert_array_equal(result_of(tail, points), function(of.accumulators.values(points)))


@pytest.mark.parametrize("line", FUNCTIONS)
def test_runtimes_that_round_products_and_sums_at_once_are_not_replayed(line, monkeypatch):
    function = chain(f"y = {line}")
    (part,) = function.parts
    assert is_defined_by_ieee(part)
    alpha = dict(zip(FUNCTIONS, (1 / 6, 0.2, -0.3), strict=True))[line]

    def fused(self, x):
        sigmoid = np.clip(x.astype(np.float64) * np.float32(alpha) + 0.5, 0, 1).astype(np.float32)
        return sigmoid * x if "Swish" in line else sigmoid

    monkeypatch.setattr(NodeChain, "__call__", fused)
    assert not is_defined_by_ieee(part)


def test_a_value_is_read_again_behind_its_bound():
    function = chain("r = Relu(x)", "y = Mul(x, r)")
    assert replay_floats(function, root(-(2**12), 2**12)) is not None


def test_infinities_on_the_way_settle_nothing(monkeypatch):
    """What Relu makes of NaN, say, is not the same everywhere."""
    monkeypatch.setattr(float_replay, "_MOST_EVALUATIONS", 1000)
    function = chain("a = Mul(x, big)", "b = Mul(a, none)", "y = Relu(b)")
    assert replay_floats(function, root(-(2**28), 2**28)) is None
    assert replay_floats(function, root(0, 0)) is not None


def test_a_bound_that_is_computed_is_no_constant():
    function = chain("a = Neg(x)", "y = Clip(x, a)")
    assert replay_floats(function, root(0, 100)) is None
