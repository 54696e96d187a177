# SPDX-License-Identifier: Apache-2.0
"""The times of layers: of each in the float graph, and of those on integers besides."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import anybit
from anybit.lowbit.report import Report
from anybit.lowbit.speed import Speed
from anybit.lowbit.timing import timed

MIXED = """
<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
graph (float[ROWS, 4] x) => (float[ROWS, 4] y)
<float one = {1}, float none = {0}, float four = {4}>
{
  wq = qonnx.custom_op.general.IntQuant(w, one, none, four)
  float = MatMul(x, wq)
  fq = qonnx.custom_op.general.IntQuant(float, one, none, four)
  a = MatMul(fq, wq)
  rectified = Relu(a)
  aq = qonnx.custom_op.general.IntQuant(rectified, one, none, four)
  y = MatMul(aq, wq)
}
"""


def mixed(rows: str) -> onnx.ModelProto:
    model = parser.parse_model(MIXED.replace("ROWS", rows))
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    return model


@pytest.mark.parametrize("rows", ["N", "8"])
def test_layers_have_times(rows: str) -> None:
    model = mixed(rows)
    kept = model.SerializeToString()
    compiled = anybit.compile(model)
    first, *others = timed(compiled.report, model).layers
    assert first.guarantee is None
    assert first.seconds is None
    assert first.float_seconds is not None
    assert len(others) == 2
    for layer in others:
        assert layer.seconds is not None
        assert layer.float_seconds is not None
        assert layer.seconds > 0
        assert layer.float_seconds >= 0
    assert model.SerializeToString() == kept


def test_the_report_says_how_fast_it_is_where_that_is_asked_for() -> None:
    report = anybit.compile(mixed("N"), time=True).report
    assert report.speed is not None
    seconds = report.to_json()["speed"]
    assert seconds.keys() == {"compiled", "floats", "optimized"}
    assert min(seconds.values()) > 0
    assert any(layer.seconds for layer in report.layers)
    assert "per run of one row" in report.whole
    silent = anybit.compile(mixed("N")).report
    assert (silent.speed, silent.whole, silent.to_json()["speed"]) == (None, "", None)


@pytest.mark.parametrize(
    ("speed", "slower"),
    [
        (Speed(1e-3, 4e-3, 2e-3), False),
        (Speed(1e-3, 4e-3, 0.9e-3), False),
        (Speed(1e-3, 4e-3, 0.5e-3), True),
        (Speed(1e-3, 0.5e-3, 2e-3), True),
    ],
)
def test_what_is_clearly_slower_is_said_to_be(speed: Speed, slower: bool) -> None:
    said = Report((), (), speed).whole
    assert speed.is_slower == slower
    assert said.startswith("slower than the float graph: 1 ms per run") == slower
    assert str(speed) in said


def test_what_to_do_about_a_slow_model() -> None:
    slow = Speed(1e-3, 4e-3, 0.5e-3)
    whole = anybit.compile(mixed("N")).report
    one = replace(whole, layers=whole.compiled, programs=whole.programs[:1], speed=slow)
    assert one.whole.endswith("; run the model as it is")
    two = replace(one, programs=whole.programs[:1] * 2)
    assert "--integer-only" in two.whole
    free = replace(whole.compiled[0], macs=None, guarantee=None)
    unknown = replace(two, layers=(*two.layers, free), has_free_sizes=True)
    assert "--shape" in unknown.whole
    assert "--integer-only" not in unknown.whole
    fixed = replace(one, layers=(*one.layers, free))
    assert fixed.whole.endswith("; run the model as it is")
