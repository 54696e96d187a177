# SPDX-License-Identifier: Apache-2.0
"""The times of layers: of each in the float graph, and of those on integers besides."""

import numpy as np
import pytest
from onnx import numpy_helper, parser

import anybit
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


@pytest.mark.parametrize("rows", ["N", "8"])
def test_layers_have_times(rows: str) -> None:
    model = parser.parse_model(MIXED.replace("ROWS", rows))
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
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
