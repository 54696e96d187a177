# SPDX-License-Identifier: Apache-2.0
"""The picture of a conversion, made by converting a small model."""

import numpy as np
import onnx_ir as ir
from _graphs import Picture, drawing, picture
from onnx import numpy_helper, parser

from anybit import convert
from anybit.onnx.forms import Form
from anybit.onnx.passes import InferShapes

_QONNX = """
<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
graph (float[N, 3, 8, 8] x) => (float[N, 8, 6, 6] y)
<float s = {0.5}, float z = {0}, float b = {4}, float[8, 1, 1, 1] scales = {1, 2, 3, 4, 5, 6, 7, 8}>
{
  xq = qonnx.custom_op.general.IntQuant(x, s, z, b)
  wq = qonnx.custom_op.general.IntQuant<narrow=1>(w, scales, z, b)
  y = Conv(xq, wq)
}
"""


def draw_conversion() -> str:
    """Return the picture of a model in QONNX and in QuantizeLinear pairs."""
    proto = parser.parse_model(_QONNX)
    weights = np.linspace(-9, 9, 8 * 3 * 3 * 3, dtype=np.float32).reshape(8, 3, 3, 3)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    before = ir.from_proto(proto)
    InferShapes()(before)
    after = convert(proto, to=Form.QDQ).model
    shown: list[Picture] = [
        picture("before: QONNX", before.graph, before.opset_imports[""]),
        picture(f"after: {Form.QDQ}", after.graph, after.opset_imports[""], before.graph),
    ]
    title = f"QONNX converted to {Form.QDQ}"
    count = [f"{picture.heading}: {len(picture.boxes)} boxes" for picture in shown]
    return drawing(shown, title, "; ".join(count))
