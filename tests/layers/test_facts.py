# SPDX-License-Identifier: Apache-2.0
"""Which layers read which, and how that is drawn."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import anybit
from anybit.layers import page
from anybit.layers.layer import Layer
from anybit.layers.wording import reasons

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


@pytest.mark.parametrize(
    "why",
    [
        "a step of {0}.5 is not a power of two: products round",
        "its input {0!r} is not quantized: quantize it",
        "node 'to {0}' (Reshape) takes them from node 'of {0}' (Mul), which computes them",
        'its input "the layer\'s {0}" is not quantized: quantize it',
        "its input 'the \"layer\\'s\" {0}' is not quantized: quantize it",
    ],
)
def test_reasons_that_differ_in_a_number_or_a_name_are_one(why: str) -> None:
    layers = [Layer(f"layer{n}", "MatMul", f"y{n}", reason=why.format(f"{n}")) for n in range(6)]
    (told,) = reasons(layers)
    first = layers[0].reason
    assert told == f"layer0, layer1, layer2, layer3 and 2 more: float; of the first, {first}"


@pytest.mark.parametrize("which", ["a tensor's neighbour is a {}; so is another's", "it is {}"])
def test_reasons_that_differ_in_words_are_not(which: str) -> None:
    layers = [Layer(word, "MatMul", word, reason=which.format(word)) for word in ("sum", "mean")]
    assert len(reasons(layers)) == 2
