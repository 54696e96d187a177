# SPDX-License-Identifier: Apache-2.0
"""Sound models for the fuzzer, which together use all parts of ONNX that anybit reads."""

import math
from functools import cache

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

DATA = "weights.data"
"""Name of the file of external data in the folder of a model."""

_QONNX = '"qonnx.custom_op.general": 1'

_WEIGHTS = """
graph (float[N, 3, 8, 8] x) => (float[N, 10] y)
<float[4, 3, 3, 3] w, float[4, 1, 1, 1] sw = {0.5, 0.25, 0.125, 1}, float[4] b = {1, 2, 3, 4},
 float[10, 4] w2, float s = {0.5}, float z = {0}, float four = {4}, float two = {2}>
{
  xq = qonnx.custom_op.general.Quant<signed=1, narrow=0, rounding_mode="ROUND">(x, s, z, four)
  wq = qonnx.custom_op.general.Quant<signed=1, narrow=1>(w, sw, z, two)
  c = Conv<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(xq, wq, b)
  r = Relu(c)
  p = GlobalAveragePool(r)
  f = Flatten<axis=1>(p)
  fq = qonnx.custom_op.general.IntQuant<signed=0, rounding_mode="FLOOR">(f, s, z, four)
  w2q = qonnx.custom_op.general.BipolarQuant(w2, s)
  y = Gemm<transB=1>(fq, w2q)
}"""

_ACTIVATIONS = """
graph (float[2, 4] x, float t) => (float[2, 4] y, int8[2, 4] d)
<float s = {0.5}, float z = {0}, float eight = {8}, float four = {4}, float seven = {7},
 float three = {3}, float largest = {448}, float[4] wide = {1, 2, 3, 4}>
{
  a = qonnx.custom_op.general.FloatQuant<saturation=1, has_inf=0>
      (x, s, four, three, seven, largest)
  e = qonnx.custom_op.general.IntQuant<signed=1>(a, t, z, eight)
  g = qonnx.custom_op.general.Trunc<signed=1, narrow=0, rounding_mode="FLOOR">
      (e, s, z, eight, s, four)
  h = qonnx.custom_op.general.BipolarQuant(g, wide)
  d = anybit.DynamicQuantize<dst="s8", qtype="per_channel", axis=1>(h, wide)
  v = anybit.DynamicDequantize<qtype="per_channel", axis=1>(d, wide)
  y = Add(v, x)
}"""

_OLD = """
graph (float[1, 2, 4, 4] x, float[1] s) => (float[1, 2, 8, 8] y)
<float[1] s = {0.5}, float[1] z = {0}, float[1] b = {8}, float[1] b4 = {4},
 float[2] one = {1, 1}, float[4] up = {1, 1, 2, 2}>
{
  q = onnx.brevitas.Quant<rounding_mode="round">(x, s, z, b)
  t = onnx.brevitas.Trunc<rounding_mode="floor">(q, s, z, b, b4)
  n = BatchNormalization<epsilon=0.00001>(t, one, one, one, one)
  k = Constant<value = float[1, 2, 1, 1] {3, 4}>()
  m = Mul(n, k)
  u = Upsample<mode="nearest">(m, up)
  c = Clip<min=0.0, max=6.0>(u)
  o = Dropout<ratio=0.5>(c)
  y = Softmax<axis=1>(o)
}"""

_COMPUTED = """
graph (float[2, 4] x) => (float[2, 4] y)
<float[4, 4] w, int64[2] shape = {1, 4}, float z = {0}, int64 one = {1}, int64[1] axes = {0},
 bool mask = {1}>
{
  filled = ConstantOfShape<value = float[1] {0.5}>(shape)
  size = Shape(x)
  n = Gather<axis=0>(size, one)
  bits = Cast<to=1>(n)
  e = Expand(filled, shape)
  half = Div(e, bits)
  s = Squeeze(half, axes)
  both = Concat<axis=0>(s, s)
  part = Slice(both, axes, one)
  wq = qonnx.custom_op.general.Quant(w, s, z, bits)
  top = ReduceMax<keepdims=0>(w)
  lower = Where(mask, top, z)
  m = MatMul(x, wq)
  q = qonnx.custom_op.general.Quant(m, half, z, bits)
  v = Reshape(q, size)
  y = Pow(v, lower)
}"""

_BRANCHES = """
graph (float[1, 4] x, bool c) => (float[1, 4] y)
<float s = {0.5}, float z = {0}, float b = {4}, float[1, 4] w = {1, 2, 3, 4}, int64 n = {3}>
{
  y0 = If(c) <
    then_branch = g1 () => (float[1, 4] t) {
      u = qonnx.custom_op.general.Quant(x, s, z, b)
      t = If(c) <
        then_branch = g2 () => (float[1, 4] a) {
          k = qonnx.custom_op.general.BipolarQuant(w, s)
          a = Add(k, u)
        },
        else_branch = g3 () => (float[1, 4] d) { d = Neg(u) }
      >
    },
    else_branch = g4 () => (float[1, 4] v) { v = Identity(w) }
  >
  y = Loop(n, c, y0) <
    body = g5 (int64 i, bool go, float[1, 4] p) => (bool on, float[1, 4] r) {
      on = Identity(go)
      r = qonnx.custom_op.general.Quant(p, s, z, b)
    }
  >
}"""

_FUNCTIONS = """
graph (float[1, 4] x) => (float[1, 4] y)
<float s = {0.5}>
{
  h = mine.Block<width=3.0>(x, s)
  y = mine.Twice(h, s)
}
<domain: "mine", opset_import: ["": 15, "qonnx.custom_op.general": 1]>
Block <width> (a, scale) => (b)
{
  zero = Constant<value = float {0}>()
  bits = Constant<value_float: float = @width>()
  b = qonnx.custom_op.general.Quant<signed=1>(a, scale, zero, bits)
}
<domain: "mine", opset_import: ["": 15, "mine": 1]>
Twice (a, scale) => (d)
{
  c = mine.Block<width=2.0>(a, scale)
  d = mine.Block<width=5.0>(c, scale)
}
<domain: "qonnx.custom_op.general", opset_import: ["": 15]>
Quant <signed> (a, b, c, d) => (e) { e = Identity(a) }
"""

_QDQ = """
graph (float[N, 4] x) => (float[N, 3] y)
<float s = {0.5}, int8 z = {0}, int8 low = {-8}, int8 high = {7}, float[3] sw = {0.5, 1, 2},
 int4[4, 3] w, int4[3] zw, int32[3] b = {1, 2, 3}, int32 zb = {0}, uint8 zu = {3}>
{
  q = QuantizeLinear(x, s, z)
  k = Clip(q, low, high)
  d = DequantizeLinear(k, s, z)
  wd = DequantizeLinear<axis=1>(w, sw, zw)
  bd = DequantizeLinear(b, s, zb)
  m = MatMul(d, wd)
  a = Add(m, bd)
  u = QuantizeLinear(a, s, zu)
  e = DequantizeLinear(u, s, zu)
  y = Mul(e, sw)
}"""

_INTEGERS = """
graph (float[1, 2, 4, 4] x, float[1, 4] v) => (float[1, 3, 2, 2] y, float[1, 3] p)
<float s = {0.5}, uint8 z = {0}, int8 zw = {0}, int8[3, 2, 3, 3] w, int32[3] bias, uint8[4, 3] m,
 int4[4, 3] codes, float[2, 3] scales, int4[2, 3] zeros, float8e4m3fn zf, float one = {1},
 float zero = {0}, float minus = {-1}>
{
  q = QuantizeLinear(x, s, z)
  c = QLinearConv<kernel_shape=[3, 3]>(q, s, z, w, s, zw, s, z, bias)
  d = DequantizeLinear(c, s, z)
  f = QuantizeLinear(d, s, zf)
  g = DequantizeLinear(f, s, zf)
  positive = GreaterOrEqual(g, zero)
  sign = Where(positive, one, minus)
  t = QuantizeLinear(sign, s, zw)
  y = DequantizeLinear(t, s, zw)
  vq = QuantizeLinear(v, s, z)
  n = QLinearMatMul(vq, s, z, m, s, z, s, z)
  nd = DequantizeLinear(n, s, z)
  b = DequantizeLinear<axis=0, block_size=2>(codes, scales, zeros)
  vb = MatMul(v, b)
  p = Add(nd, vb)
}"""


_STALE = """
graph (float[N, 3] x) => (float[1, 3] y)
<float s = {0.5}, float z = {0}, float b = {8}, int64 zero = {0}>
{
  a = Relu(x)
  t = Transpose<perm = [0, 1]>(a)
  sizes = Shape(t)
  rows = Gather(sizes, zero)
  factor = Cast<to=1>(rows)
  m = Mul(t, factor)
  y = qonnx.custom_op.general.IntQuant(m, s, z, b)
}"""

_OTHER_VERSION = """
graph (float[1, 4] x) => (float[1, 4] y)
<float s = {0.5}>
{
  h = mine.Block<width=3.0>(x, s)
  y = mine.Block<width=5.0>(h, s)
}
<domain: "mine", opset_import: ["": 13, "qonnx.custom_op.general": 1]>
Block <width> (a, scale) => (b)
{
  zero = Constant<value = float {0}>()
  bits = Constant<value_float: float = @width>()
  c = qonnx.custom_op.general.Quant<signed=1>(a, scale, zero, bits)
  b = ReduceMax<axes=[0], keepdims=1>(c)
}"""


def _stale() -> onnx.ModelProto:
    """Return a model that declares shapes that contradict its input."""
    proto = _model(_STALE, 17, _QONNX)
    for name in "at":
        declared = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 3])
        proto.graph.value_info.append(declared)
    return proto


def _model(text: str, opset: int, *imports: str, ir: int = 8) -> onnx.ModelProto:
    """Parse a model. Declared values without a producer become random initializers."""
    opsets = ", ".join([f'"": {opset}', *imports])
    proto: onnx.ModelProto = parser.parse_model(
        f"<ir_version: {ir}, opset_import: [{opsets}]>{text}"
    )
    random = np.random.default_rng(0)
    for value in proto.graph.value_info:
        declared = value.type.tensor_type
        shape = [dim.dim_value for dim in declared.shape.dim]
        values = random.integers(-4, 5, math.prod(shape)) if shape else [0]
        tensor = helper.make_tensor(value.name, declared.elem_type, shape, values)
        array = numpy_helper.to_array(tensor)
        proto.graph.initializer.append(numpy_helper.from_array(array, value.name))
    del proto.graph.value_info[:]
    return proto


def _external() -> tuple[onnx.ModelProto, bytes]:
    """Return a model with external weights, and the content of their file."""
    proto = _model(_WEIGHTS, 13, _QONNX)
    data = b""
    for tensor in proto.graph.initializer:
        if tensor.HasField("raw_data"):
            entries = {"location": DATA, "offset": len(data), "length": len(tensor.raw_data)}
            data += tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
    return proto, data


@cache
def seeds() -> list[tuple[onnx.ModelProto, bytes]]:
    """Return the models with the contents of their data files. Copy a model before changing it."""
    models = [
        _model(_WEIGHTS, 13, _QONNX),
        _model(_ACTIVATIONS, 17, '"qonnx.custom_op.general": 2', '"anybit": 1'),
        _model(_OLD, 9, ir=6),
        _model(_COMPUTED, 13, _QONNX),
        _model(_BRANCHES, 16, _QONNX),
        _model(_FUNCTIONS, 15, _QONNX, '"mine": 1'),
        _model(_QDQ, 21, ir=10),
        _model(_INTEGERS, 21, ir=10),
        _stale(),
        _model(_OTHER_VERSION, 18, _QONNX, '"mine": 1'),
    ]
    return [*((model, b"") for model in models), _external()]
