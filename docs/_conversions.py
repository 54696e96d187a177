# SPDX-License-Identifier: Apache-2.0
"""Pictures of conversions, made by converting small models."""

import numpy as np
import onnx
import onnx_ir as ir
from _graphs import Picture, drawing, picture
from onnx import TensorProto, helper, numpy_helper, parser

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

_QDQ = """
<ir_version: 10, opset_import: ["": 21]>
graph (float[N, 16] x) => (float[N, 8] y)
<float s = {0.25}, int8 z = {0}, int8 low = {-32}, int8 high = {31},
 float[8] scales = {1, 2, 3, 4, 5, 6, 7, 8}>
{
  codes = QuantizeLinear(x, s, z)
  clipped = Clip(codes, low, high)
  xq = DequantizeLinear(clipped, s, z)
  wq = DequantizeLinear<axis=1>(w, scales, zeros)
  y = MatMul(xq, wq)
}
"""


def conversion_figures() -> dict[str, str]:
    """Return by file a picture for each form of QONNX, and one for the conversion back."""
    qonnx = _qonnx()
    figures = {
        f"convert_{form}.svg": _figure(qonnx, "QONNX", form)
        for form in (Form.STANDARD, Form.PORTABLE, Form.QDQ, Form.QCDQ)
    }
    figures["convert_qonnx.svg"] = _figure(_qdq(), "QuantizeLinear, DequantizeLinear", Form.QONNX)
    return figures


def _qonnx() -> onnx.ModelProto:
    model = parser.parse_model(_QONNX)
    weights = np.linspace(-9, 9, 8 * 3 * 3 * 3, dtype=np.float32).reshape(8, 3, 3, 3)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def _qdq() -> onnx.ModelProto:
    model = parser.parse_model(_QDQ)
    for name, shape in (("w", [16, 8]), ("zeros", [8])):
        codes = np.arange(np.prod(shape)) % 16 - 8 if name == "w" else np.zeros(shape)
        tensor = helper.make_tensor(name, TensorProto.INT4, shape, codes.ravel())
        model.graph.initializer.append(tensor)
    return model


def _figure(proto: onnx.ModelProto, name: str, form: Form) -> str:
    before = ir.from_proto(proto)
    InferShapes()(before)
    after = convert(proto, to=form).model
    shown: list[Picture] = [
        picture(f"before: {name}", before.graph, before.opset_imports[""]),
        picture(f"after: {form}", after.graph, after.opset_imports[""], before.graph),
    ]
    for function in after.functions.values():
        heading = f"the local function {function.name}"
        shown.append(picture(heading, function.graph, function.opset_imports[""]))
    title = f"{name} converted to {form}"
    count = [f"{picture.heading}: {len(picture.boxes)} boxes" for picture in shown]
    return drawing(shown, title, "; ".join(count))
