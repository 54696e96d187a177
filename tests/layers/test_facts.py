# SPDX-License-Identifier: Apache-2.0
"""Which layers read which, and how that is drawn."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import onnx
from onnx import numpy_helper, parser

import anybit
from anybit.layers import page

RESIDUAL = """
<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
graph (float[N, 4] x) => (float[N, 4] y)
<float one = {1}, float none = {0}, float four = {4}>
{
  xq = qonnx.custom_op.general.IntQuant(x, one, none, four)
  wq = qonnx.custom_op.general.IntQuant(w, one, none, four)
  a = MatMul(xq, wq)
  aq = qonnx.custom_op.general.IntQuant(a, one, none, four)
  b = MatMul(aq, wq)
  bq = qonnx.custom_op.general.IntQuant(b, one, none, four)
  c = MatMul(bq, wq)
  sum = Add(aq, c)
  sq = qonnx.custom_op.general.IntQuant(sum, one, none, four)
  y = MatMul(sq, wq)
}
"""


def residual() -> onnx.ModelProto:
    model = parser.parse_model(RESIDUAL)
    model.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    return model


def test_layers_before() -> None:
    """What belongs to a layer, an addition say, reads for it; and nobody reads beyond the next."""
    for layers in (anybit.analyze(residual()).layers, anybit.compile(residual()).report.layers):
        a, b, c, y = layers
        assert (a.inputs, b.inputs) == ((), (a.name,))
        assert (c.inputs, y.inputs) == ((a.name, b.name), (c.name,))


def test_the_network_has_an_edge_for_each() -> None:
    (drawn,) = re.findall(r"<svg.*?</svg>", page(anybit.analyze(residual())), re.DOTALL)
    paths = [each for each in ET.fromstring(drawn).iter() if each.get("class") == "edge"]
    straight = [each for each in paths if "q" not in each.attrib["d"]]
    assert (len(paths), len(straight)) == (4, 3)
